"""Words for tables, columns and statuses in several languages, and the likeness of a name and a meaning.

A name is split into its words (`paid_at`, `paidAt`, `PAID AT`), without accents and case. A word of five
characters or more, or in another script, is also found within a compound (`Kundennummer`), except after a
negation. A shorter one must be a whole word: `unpaid` is no payment.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

TABLES: Final = {
    "orders": "order orders purchase purchases booking bookings reservation reservations sale sales checkout "
    "bestellung bestellungen auftrag auftrage buchung commande commandes achat pedido pedidos compra reserva "
    "encomenda ordine ordini acquisto prenotazione bestelling zamowienie zamowienia zakaz заказ заказы "
    "order_header ordre tilaus siparis 注文 订单 訂單 주문",
    "order_lines": "line lines item items position positionen posten ligne lignes linea lineas detail "
    "details riga righe regel pozycja позиция 明細 明细",
    "carts": "cart carts basket baskets warenkorb korb panier carrito cesta carrello carrinho winkelwagen "
    "koszyk корзина カート 购物车",
    "ledger": "ledger moves movements history journal log changes bewegung bewegungen verlauf mouvement "
    "mouvements movimiento movimientos movimento movimenti historique ruchy 履歴",
    "pushes": "push pushes notification notifications reminder reminders campaign mailing message alert "
    "benachrichtigung erinnerung rappel recordatorio aviso promemoria powiadomienie уведомление 通知",
}  # fmt: skip

COLUMNS: Final = {
    "customer_id": "customer client buyer user account member guest shopper owner consumer patron rider "
    "passenger patient tenant student subscriber traveller kunde "
    "kundin kaeufer kaufer besteller gast utilisateur acheteur cliente usuario comprador acquirente utente "
    "klant koper klient kupujacy pokupatel клиент покупатель 顧客 客户 고객",
    "status": "status state stage phase condition zustand stand etat statut estado situacion stato toestand "
    "stan kunde_status статус состояние 状態 状态 상태",
    "total_pence": "total amount sum price value worth cost fee fare rent copay cents pence minor betrag "
    "summe gesamt preis wert "
    "montant prix somme importe precio valor totale prezzo bedrag kwota cena suma сумма цена 金額 金额",
    "currency": "currency cur coin ccy waehrung wahrung devise moneda divisa valuta moeda waluta валюта 通貨",
    "placed_ms": "placed created ordered booked made purchased submitted opened inserted bestellt angelegt "
    "erstellt eingegangen gebucht cree passee creado realizado creato effettuato besteld aangemaakt "
    "utworzono zlozono создан 作成 创建",
    "due_ms": "due deadline until expires expiry pay_by payby hold held faellig fallig frist bis ablauf "
    "echeance limite vence vencimiento caduca scadenza scade vervalt termin срок 期限",
    "paid_ms": "paid settled payment captured charged bezahlt zahlung beglichen paye payee paiement pagado "
    "pago pagato pagamento betaald oplacono zaplacono оплачен 支払 支付",
    "timed_out_ms": "timed_out timedout timeout expired lapsed abandoned abgelaufen verfallen verfallen_am "
    "expire expiree perime caducado vencido expirado scaduto verlopen wygaslo истек 失効 过期",
    "cancelled_ms": "cancelled canceled cancel void voided revoked withdrawn called_off storniert "
    "abgebrochen annule annulee cancelado anulado annullato geannuleerd anulowano отменен 取消",
    "sku": "sku article item product ean isbn artikel produkt produit articulo producto articolo prodotto "
    "towar товар 商品",
    "quantity": "quantity qty count pieces units amount number menge anzahl stueck stuck quantite cantidad "
    "quantita quantidade aantal hoeveelheid ilosc liczba количество 数量",
    "entry": "entry kind type reason what action art typ grund vorgang genre tipo motivo soort rodzaj тип",
    "entry_id": "entry_id reference ref source origin beleg quelle reference_id referencia riferimento",
    "at_ms": "at when time moment created zeit am wann heure date fecha hora data czas время",
    "schedule_id": "schedule plan recurring rule zeitplan",
    "message_id": "message_id msg_id messageid",
    "delivered_ms": "delivered sent done zugestellt gesendet envoye enviado inviato verzonden wyslano",
}  # fmt: skip

STATUSES: Final = {
    "PLACED": "placed new open pending waiting unpaid awaiting confirmed created reserved held active offen "
    "neu wartend unbezahlt angelegt bestellt ouvert ouverte nouveau nouvelle attente impayee impaye abierto "
    "nuevo pendiente aberto pendente aperto nuovo attesa nieuw wachtend otwarte nowe oczekuje "
    "новый ожидает 新規 未払",
    "PAID": "paid settled completed complete captured done shipped fulfilled charged bezahlt erledigt "
    "abgeschlossen versendet beglichen payee paye reglee regle pagado pagada pago pagato pagata betaald "
    "oplacone zaplacone оплачен 支払済 已支付",
    "TIMED_OUT": "timed_out timedout timeout expired lapsed abandoned overdue abgelaufen verfallen expiree "
    "expire perimee caducado vencido expirado scaduto scaduta verlopen wygasle истек 失効 过期",
    "CANCELLED": "cancelled canceled cancel void voided revoked withdrawn called_off storniert "
    "abgebrochen annulee annule cancelado anulado annullato geannuleerd anulowane отменен 取消",
}  # fmt: skip

PUSH_STATUSES: Final = {
    "SCHEDULED": "scheduled planned pending waiting queued open new geplant offen planifie programado",
    "DELIVERED": "delivered sent done zugestellt gesendet envoye enviado inviato",
    "CANCELLED": STATUSES["CANCELLED"],
    "FAILED": "failed error bounced dead fehlgeschlagen fehler echoue fallado fallito",
}

_WITHIN_MIN: Final = 5
_WORDS: Final = re.compile(r"[^\W_]+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def plain(name: str) -> str:
    """Return a name in lower case without accents, its words joined by `_`."""
    humps = _HUMP.sub("_", name)
    letters = unicodedata.normalize("NFKD", humps)
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter)).casefold()
    return "_".join(_WORDS.findall(bare))


def likeness(name: str, words: str) -> int:
    """Return the length in characters of the longest of some words that a name contains; 0 for none."""
    named = plain(name)
    parts = {named, *named.split("_")}
    return max((len(word) for word in map(plain, words.split()) if _holds(named, parts, word)), default=0)


def meaning(name: str, vocabulary: Mapping[str, str]) -> str:
    """Return the meaning of a name: the entry with the longest word in it; "" for none, or for a tie."""
    lengths = {one: likeness(name, words) for one, words in vocabulary.items()}
    best = max(lengths.values(), default=0)
    found = [one for one, length in lengths.items() if length == best]
    return found[0] if best and len(found) == 1 else ""


def _holds(name: str, parts: set[str], word: str) -> bool:
    if word in parts or ("_" in word and f"_{word}_" in f"_{name}_"):
        return True
    is_compound = len(word) >= _WITHIN_MIN or not word.isascii()
    return is_compound and any(word in part and not _is_negated(part, word) for part in parts)


def _is_negated(part: str, word: str) -> bool:
    before = part[: part.index(word)]
    return before in ("un", "non", "not", "nicht", "in", "im")

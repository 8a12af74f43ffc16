// Keeps a page fresh: asks for it again, and puts the new content in place of the old.
// It leaves a page alone while somebody fills in a form, is at a link by keyboard, or selects text, and in a tab that is not looked at.
// A page that is old for one of these reasons, or because nothing answers, says so and has no green lights.
"use strict";
const USUAL_MS = 5000;
const OLD_MS = 10000;
const LATE_MS = 15000;
const GIVE_UP_MS = 60000;
const TRIES = 3;
const SCROLLED = ".scroll, pre";
const PAUSED = " · not refreshed while a form is filled in, a link has the focus or text is selected";
let freshMs = performance.now();
let failed = 0; // the tries in a row that had no answer

function isChanged(field) {
  if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
  if (!field.matches("select")) return field.value !== field.defaultValue;
  const options = [...field.options];
  const usual = options.find((one) => one.defaultSelected) ?? options.find((one) => !one.disabled);
  return options.some((one) => one.selected !== (one === usual));
}

function isBusy() {
  const at = document.activeElement;
  const isAway = at && at !== document.body && at.id !== "content" && !at.matches(SCROLLED); // replaced, it would lose the focus
  const filled = [...document.querySelectorAll("main form :is(input, textarea, select)")].some(isChanged);
  return isAway || filled || String(getSelection()) !== "";
}

function isStale() {
  return document.getElementById("stale").textContent !== "";
}

function sayStale(why) {
  const notice = document.getElementById("stale");
  const shownAt = document.querySelector("footer time").textContent;
  const anew = failed >= TRIES ? ` ${notice.dataset.anew}` : "";
  const said = why && `Not up to date: ${why} The page asks again. It shows what was so at ${shownAt}.${anew}`;
  if (notice.textContent !== said) notice.textContent = said; // a new text is read out
  document.documentElement.classList.toggle("stale", said !== "");
}

function sayPaused() {
  if (performance.now() - freshMs < OLD_MS) return;
  document.getElementById("late").textContent = PAUSED;
  document.documentElement.classList.add("stale");
}

function replaceBy(fresh) {
  const before = [...document.querySelectorAll(SCROLLED)];
  const scrolled = before.map((one) => [one.scrollLeft, one.scrollTop]);
  const focused = before.indexOf(document.activeElement);
  for (const part of ["main", "header", "footer"]) {
    document.querySelector(part).replaceWith(fresh.querySelector(part));
  }
  document.querySelectorAll(SCROLLED).forEach((one, at) => {
    [one.scrollLeft, one.scrollTop] = scrolled[at] || [0, 0];
    if (at === focused) one.focus({ preventScroll: true });
  });
  document.title = fresh.title;
  freshMs = performance.now();
}

async function refresh() {
  if (document.hidden) return;
  if (isBusy() && !isStale()) return sayPaused();
  document.getElementById("late").textContent = "";
  const late = setTimeout(() => sayStale(`the console has not answered for ${LATE_MS / 1000} seconds.`), LATE_MS);
  try {
    const headers = { Accept: "text/html", "X-Refresh": "page" };
    const signal = AbortSignal.timeout(GIVE_UP_MS);
    const answer = await fetch(location.href, { headers, cache: "no-store", signal });
    failed = 0;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!fresh.querySelector("main")) return sayStale(`the console answers with status ${answer.status}.`);
    if (answer.status === 503 && !document.querySelector("[data-again]")) {
      return sayStale(fresh.querySelector("main .error").textContent); // what was there stays to be read
    }
    sayStale("");
    if (isBusy()) return sayPaused();
    replaceBy(fresh);
  } catch {
    failed += 1;
    sayStale("the console does not answer.");
  } finally {
    clearTimeout(late);
  }
}

function refreshLater() {
  const everyMs = Number(document.querySelector("main").dataset.everyMs ?? USUAL_MS);
  if (everyMs) setTimeout(() => refresh().finally(refreshLater), everyMs);
}

if (document.querySelector("header nav")) refreshLater();

// Follows a search: asks for the next part, and adds what it found, until the end, a stop, or ROWS_MAX rows.
const ROWS_MAX = 1000;

function stopButton(follow) {
  const button = document.createElement("button");
  button.textContent = "Stop";
  button.id = "stop";
  button.addEventListener("click", () => { follow.dataset.stopped = "yes"; });
  return button;
}

async function followSearch(follow) {
  const progress = document.querySelector("[data-progress]");
  const rows = document.querySelector("[data-part] tbody");
  const link = follow.querySelector("a");
  const button = stopButton(follow);
  let scanned = Number(progress.dataset.scanned);
  link.hidden = true;
  follow.append(button);
  try {
    while (!follow.dataset.stopped && rows.children.length < ROWS_MAX) {
      const answer = await fetch(link.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      const part = new DOMParser().parseFromString(await answer.text(), "text/html");
      const told = part.querySelector("[data-progress]");
      if (!told) {
        progress.textContent = "Stopped: " + (part.querySelector("main .error") || part.body).textContent;
        break;
      }
      scanned += Number(told.dataset.scanned);
      rows.append(...part.querySelectorAll("[data-part] tbody tr"));
      const until = told.textContent.replace(/^.*? match/, "");
      progress.textContent = `${rows.children.length} of ${scanned.toLocaleString("en")} messages match${until}`;
      const next = part.querySelector("[data-follow] a");
      if (!next) return follow.remove();
      link.href = next.href;
    }
  } catch {
    progress.textContent += " The console does not answer: search on later.";
  }
  button.remove();
  link.hidden = false;
}

const follow = document.querySelector("[data-follow]");
if (follow) followSearch(follow);

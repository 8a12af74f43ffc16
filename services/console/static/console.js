// Keeps a page fresh: asks for it again, and puts the new content in place of the old.
// It leaves a page alone while somebody fills in a form, is at a link by keyboard, or selects text, and in a tab that is not looked at.
"use strict";
const USUAL_MS = 5000;
const SCROLLED = ".scroll, pre";

function isBusy() {
  const at = document.activeElement;
  const isAway = at && at !== document.body && at.id !== "content" && !at.matches(SCROLLED); // replaced, it would lose the focus
  const fields = "main form[method=post] input, main form[method=post] textarea";
  const filled = [...document.querySelectorAll(fields)].some((one) => one.value !== one.defaultValue);
  return document.hidden || isAway || filled || String(getSelection()) !== "";
}

async function refresh() {
  if (isBusy()) return;
  const late = document.getElementById("late");
  try {
    const headers = { Accept: "text/html", "X-Refresh": "page" };
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isBusy() || !fresh.querySelector("main")) return;
    if (answer.status === 503 && !document.querySelector("[data-again]")) {
      late.textContent = " · " + fresh.querySelector("main .error").textContent + " The page asks again.";
      return; // what was there stays to be read, and says how old it is
    }
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
  } catch {
    late.textContent = " · the console does not answer; the page asks again";
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

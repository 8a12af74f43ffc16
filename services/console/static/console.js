// Keeps a page fresh: asks for it again, and puts the new content in place of the old.
// It leaves a page alone while somebody fills in a form or selects text, and in a tab that is not looked at.
"use strict";
const EVERY_MS = 5000;

function isBusy() {
  const at = document.activeElement;
  const typing = at && ["INPUT", "SELECT", "TEXTAREA", "BUTTON"].includes(at.tagName);
  const filled = [...document.querySelectorAll("main form[method=post] input")].some((one) => one.value !== one.defaultValue);
  return document.hidden || typing || filled || String(getSelection()) !== "";
}

async function refresh() {
  if (isBusy()) return;
  const late = document.getElementById("late");
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isBusy() || !fresh.querySelector("main")) return;
    if (answer.status === 503 && !document.querySelector("[data-again]")) {
      late.textContent = " · " + fresh.querySelector("main .error").textContent + " The page asks again.";
      return; // what was there stays to be read, and says how old it is
    }
    for (const part of ["main", "header", "footer"]) {
      document.querySelector(part).replaceWith(fresh.querySelector(part));
    }
    document.title = fresh.title;
  } catch {
    late.textContent = " · the console does not answer; the page asks again";
  }
}

if (document.querySelector("header nav")) setInterval(refresh, EVERY_MS);

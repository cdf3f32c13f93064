// Takes the figures of the page anew every five seconds, while somebody can see them and does
// nothing in them. Without it, the page has a link that does the same.
"use strict";
const EVERY_MS = 5000;

function isUsed() {
  const focus = document.activeElement;
  const main = document.querySelector("main");
  return main.contains(focus) || String(document.getSelection()) !== "";
}

async function take() {
  if (document.visibilityState !== "visible" || isUsed()) return;
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isUsed()) return;
    for (const part of ["main", "#as-of"]) {
      const scrolled = [...document.querySelectorAll(`${part} .scroll`)].map((box) => box.scrollLeft);
      document.querySelector(part).replaceWith(document.adoptNode(page.querySelector(part)));
      document.querySelectorAll(`${part} .scroll`).forEach((box, index) => {
        box.scrollLeft = scrolled[index] ?? 0;
      });
    }
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
}

setInterval(take, EVERY_MS);

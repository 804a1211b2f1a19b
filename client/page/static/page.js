"use strict";

// Follows the ledger: asks once a second whether there is something else to see, and if so puts the
// parts of the page that changed in place of the old ones. Without this script the page works too.
const SECOND = 1000;
const lost = document.getElementById("lost");

function replace(old, fresh) {
  const open = [...old.querySelectorAll("details[open]")].map((one) => one.id);
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  old.replaceWith(fresh);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

async function refresh() {
  const answer = await fetch("/", { cache: "no-store" });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const parts = [...document.querySelectorAll("[data-live]")];
  const coming = [...fresh.querySelectorAll("[data-live]")];
  if (parts.length !== coming.length) {
    location.reload();
    return;
  }
  parts.forEach((part, index) => {
    const opened = part.cloneNode(true);
    opened.querySelectorAll("details").forEach((one) => one.removeAttribute("open"));
    if (opened.innerHTML !== coming[index].innerHTML) replace(part, coming[index]);
  });
  document.body.dataset.version = fresh.body.dataset.version;
}

async function look() {
  try {
    const answer = await fetch("/version", { cache: "no-store" });
    if (answer.status === 401) location.reload(); // restarted: it has a new link now
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const { version } = await answer.json();
    if (version !== document.body.dataset.version) await refresh();
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
}

async function follow() {
  if (!document.hidden) await look();
  setTimeout(follow, SECOND);
}

follow();

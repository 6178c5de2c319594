// The panel's script. Without it every page works; with it a page looks again by itself, a cron is previewed while it
// is typed, and a replay of many goes on part by part.

"use strict";

const main = document.getElementById("main");

/** The main part of a document that was fetched, or null. */
async function mainOf(response) {
  const text = await response.text();
  return new DOMParser().parseFromString(text, "text/html").getElementById("main");
}

const keyOf = (node) => (node instanceof Element ? node.getAttribute("data-key") : null);

/** Makes an element like another one, and touches only what differs: focus, scrolling and choices stay. */
function morph(from, to) {
  if (from.isEqualNode(to)) return;
  if (from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (!(from instanceof Element)) {
    from.nodeValue = to.nodeValue;
    return;
  }
  // What a person types or has opened is his.
  if (from.hasAttribute("data-still")) return;
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  }
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value && name !== "open") from.setAttribute(name, value);
  }
  morphChildren(from, to);
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  let at = from.firstChild;
  for (const next of [...to.childNodes]) {
    const key = keyOf(next);
    const fits = at !== null && keyOf(at) === null && at.nodeName === next.nodeName;
    const match = key === null ? (fits ? at : null) : keyed.get(key);
    if (match === null || match === undefined) {
      from.insertBefore(next, at);
      continue;
    }
    keyed.delete(key);
    if (match === at) at = at.nextSibling;
    else from.insertBefore(match, at);
    morph(match, next);
  }
  while (at !== null) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

// Live pages.

const trouble = document.querySelector("[data-live-trouble]");
const liveSwitch = document.querySelector("[data-live-switch]");
let live = sessionStorage.getItem("live") !== "off";
let timer;

function say(text) {
  if (trouble === null) return;
  trouble.hidden = text === "";
  trouble.textContent = text;
}

async function look() {
  try {
    const response = await fetch(location.href, { redirect: "manual", cache: "no-store" });
    // The session has ended: the page itself says where to sign in.
    if (response.type === "opaqueredirect") return location.reload();
    const fresh = await mainOf(response);
    if (fresh !== null && live) morph(main, fresh);
    say(response.status < 500 ? "" : "The runtime could not answer; looking again.");
  } catch {
    say("The runtime does not answer; looking again.");
  }
  wait();
}

function wait() {
  clearTimeout(timer);
  const seconds = Number(main?.dataset.live);
  if (live && seconds > 0 && !document.hidden) timer = setTimeout(look, seconds * 1000);
}

if (main?.dataset.live !== undefined && liveSwitch !== null) {
  liveSwitch.hidden = false;
  liveSwitch.setAttribute("aria-pressed", String(live));
  liveSwitch.addEventListener("click", () => {
    live = !live;
    sessionStorage.setItem("live", live ? "on" : "off");
    liveSwitch.setAttribute("aria-pressed", String(live));
    wait();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));
  wait();
}

// The preview of a cron.

for (const box of document.querySelectorAll("[data-preview]")) {
  let typing;
  let asked = 0;
  const form = box.closest("form");
  const show = async () => {
    asked += 1;
    const mine = asked;
    const { cron, timeZone } = Object.fromEntries(new FormData(form));
    const response = await fetch(`${box.dataset.preview}?${new URLSearchParams({ cron, timeZone })}`);
    const text = await response.text();
    // An answer that comes behind a later one is stale.
    if (mine !== asked || !response.ok) return;
    box.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  };
  for (const name of ["cron", "timeZone"]) {
    form.elements[name].addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => show().catch(() => {}), 250);
    });
  }
}

// A replay of many.

async function goOn() {
  const form = document.querySelector("form[data-going]");
  if (form === null || main === null) return;
  try {
    const response = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    const fresh = await mainOf(response);
    if (fresh === null) return;
    morph(main, fresh);
    goOn();
  } catch {
    say("The runtime does not answer. Press Go on to go on.");
  }
}
goOn();

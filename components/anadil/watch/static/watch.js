// The server makes every page; this only asks for it again and puts what has changed in place.
"use strict";

const EVERY_MS = 2000;
let tag = "";

async function refresh() {
  let wait = EVERY_MS;
  try {
    const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    wait = Math.max(wait, 1000 * Number(answer.headers.get("X-Wait-S") || 0));
    if (answer.status === 200) {
      tag = answer.headers.get("ETag") || "";
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const next = page.getElementById(part.id);
        if (next && next.outerHTML !== part.outerHTML) part.replaceWith(document.adoptNode(next));
      }
    }
  } catch {
    wait = 5 * EVERY_MS; // the server has ended, or the machine sleeps
  }
  setTimeout(refresh, wait);
}

if (document.querySelector("[data-live]")) setTimeout(refresh, EVERY_MS);

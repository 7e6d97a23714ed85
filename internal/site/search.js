"use strict";

// The search of the site. A section of a page is found if it has every word that is typed. What is looked through is one file beside the
// pages, which is read when somebody begins to search; nobody is asked for anything.
(() => {
  const most = 20;
  const form = document.querySelector(".search"), field = document.getElementById("Search"), found = document.getElementById("Found");
  const status = found.querySelector("p"), list = found.querySelector("ol");
  let sections = null;

  // load reads the sections, once. They are a script, because a page that was opened as a file may read nothing else.
  const load = () => sections ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "search-index.js";
    script.onload = () => done(window.hullmarkSections.map(s => ({
      ...s, low: {page: s.page.toLowerCase(), heading: s.heading.toLowerCase(), text: s.text.toLowerCase()},
    })));
    script.onerror = () => failed(new Error("search-index.js, beside this page, cannot be read."));
    document.head.append(script);
  });

  // rank is how well a section answers: a word counts most in its heading, then in the page's title. It is 0 if a word is in neither nor
  // in the text.
  const rank = (low, words) => {
    let sum = 0;
    for (const word of words) {
      const of = (low.heading.includes(word) ? 9 : 0) + (low.page.includes(word) ? 3 : 0) + (low.text.includes(word) ? 1 : 0);
      if (of === 0) return 0;
      sum += of;
    }
    return sum;
  };

  // next is where in a text, from a place on, one of the words is, and how long that is; null if none is.
  const next = (low, words, from) => {
    let first = null;
    for (const word of words) {
      const at = low.indexOf(word, from);
      if (at >= 0 && (!first || at < first.at || at === first.at && word.length > first.length)) first = {at, length: word.length};
    }
    return first;
  };

  // write puts a text into an element, with the words marked.
  const write = (into, text, words) => {
    const low = text.toLowerCase();
    let from = 0;
    for (let hit = next(low, words, 0); hit; hit = next(low, words, from)) {
      const mark = document.createElement("mark");
      mark.textContent = text.slice(hit.at, hit.at + hit.length);
      into.append(text.slice(from, hit.at), mark);
      from = hit.at + hit.length;
    }
    into.append(text.slice(from));
  };

  // excerpt is a piece of a text around the first of the words.
  const excerpt = (text, words) => {
    const hit = next(text.toLowerCase(), words, 0);
    const from = Math.max(0, (hit ? hit.at : 0) - 60), piece = text.slice(from, from + 180);
    return (from > 0 ? "…" : "") + piece + (from + 180 < text.length ? "…" : "");
  };

  // item shows one section.
  const item = (s, words) => {
    const row = document.createElement("li"), link = document.createElement("a"), title = document.createElement("b"), text = document.createElement("small");
    link.href = s.href;
    write(title, s.heading === s.page ? s.page : s.page + " › " + s.heading, words);
    write(text, excerpt(s.text, words), words);
    link.append(title, document.createElement("br"), text);
    row.append(link);
    return row;
  };

  // search shows what is found of the words in the field, unless others stand there by then.
  const search = async () => {
    const typed = field.value, words = typed.toLowerCase().split(/\s+/).filter(word => word);
    if (words.length === 0) {
      found.hidden = true;
      return;
    }
    let hits = [], said = "No section has all of these words.";
    try {
      const all = await load();
      hits = all.map(s => ({s, of: rank(s.low, words)})).filter(hit => hit.of > 0).sort((a, b) => b.of - a.of);
      if (hits.length > 0) said = hits.length > most ? `The best ${most} of ${hits.length} sections` : `Sections: ${hits.length}`;
    } catch (e) {
      said = e.message;
    }
    if (field.value !== typed) return;
    list.replaceChildren(...hits.slice(0, most).map(hit => item(hit.s, words)));
    status.textContent = said;
    found.hidden = false;
  };

  // step moves the focus from the field to the links, and between these.
  const step = by => {
    const stops = [field, ...list.querySelectorAll("a")];
    const stop = stops[stops.indexOf(document.activeElement) + by];
    if (stop) stop.focus();
  };

  field.addEventListener("input", search);
  field.addEventListener("focus", search);
  form.addEventListener("submit", event => {
    event.preventDefault();
    const first = list.querySelector("a");
    if (first && !found.hidden) first.click();
  });
  form.addEventListener("keydown", event => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    step(event.key === "ArrowDown" ? 1 : -1);
  });
  list.addEventListener("click", event => {
    if (event.target.closest("a")) found.hidden = true;
  });
  document.addEventListener("click", event => {
    if (!form.contains(event.target)) found.hidden = true;
  });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape") found.hidden = true;
    if (event.key === "/" && event.target !== field && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      field.focus();
    }
  });
  form.hidden = false;
})();

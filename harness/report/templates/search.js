"use strict";
// Searches the cases, which stand in the page as data; every text is set as text, never as markup.
(() => {
  const { cases, defaults, most } = JSON.parse(document.getElementById("cases").textContent);
  const words = document.getElementById("words");
  const outcome = document.getElementById("outcome");
  const found = document.getElementById("found");
  const body = document.getElementById("rows");

  // An id leaves out what is at its default, so `wrapper=none` is sought as the absence of
  // another wrapper.
  const matches = (id, how, word) => {
    const [name, value] = word.split("=");
    const parts = id.split(",");
    if (value !== undefined && defaults[name] !== undefined) {
      const part = parts.find((text) => text.startsWith(name + "="));
      return part === undefined ? defaults[name] === value : part === word;
    }
    return id.includes(word) || how.includes(word);
  };

  const cell = (row, child) => {
    const made = row.insertCell();
    made.append(child);
    return made;
  };

  const show = () => {
    const terms = words.value.split(/[\s,]+/).filter(Boolean);
    const hits = cases.filter(
      ([id, how]) =>
        (outcome.value === "" || how === outcome.value) && terms.every((word) => matches(id, how, word)),
    );
    found.textContent =
      `${hits.length} of ${cases.length} cases` +
      (hits.length > most ? `, the first ${most} shown` : "");
    body.replaceChildren();
    for (const [id, how, seconds, page, passed] of hits.slice(0, most)) {
      const row = body.insertRow();
      cell(row, how).className = passed ? "ok" : "bad";
      const code = document.createElement("code");
      code.textContent = id;
      if (page === "") {
        cell(row, code);
      } else {
        const link = document.createElement("a");
        link.href = page;
        link.append(code);
        cell(row, link);
      }
      cell(row, `${seconds.toFixed(3)} s`);
    }
  };
  // A link such as report.html#wrapper=ddp,differs opens with that search.
  const follow = () => {
    words.value = decodeURIComponent(location.hash.slice(1)).replaceAll(",", " ");
    show();
  };
  words.addEventListener("input", show);
  window.addEventListener("hashchange", follow);
  outcome.addEventListener("change", show);
  follow();
})();

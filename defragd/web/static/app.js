/* Optional comfort: parts marked data-live are renewed while the page is looked at, and risky buttons ask first.
   Everything works without this file. */
"use strict";
(function () {
  document.addEventListener("submit", function (event) {
    var text = event.target.getAttribute("data-confirm");
    if (text && !window.confirm(text)) { event.preventDefault(); }
  });

  var parts = document.querySelectorAll("[data-live]");
  if (!parts.length || !window.fetch || !window.DOMParser) { return; }
  var every = Math.max(3, Number(document.body.getAttribute("data-every")) || 10) * 1000;
  var wait = every;

  function busy(part) { return part.contains(document.activeElement) && document.activeElement !== document.body; }

  function renew() {
    if (document.hidden) { window.setTimeout(renew, wait); return; }
    fetch(window.location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" })
      .then(function (answer) {
        if (!answer.ok) { throw new Error(String(answer.status)); }
        return answer.text();
      })
      .then(function (html) {
        var fresh = new DOMParser().parseFromString(html, "text/html");
        document.querySelectorAll("[data-live]").forEach(function (part) {
          var next = fresh.getElementById(part.id);
          if (next && next.innerHTML !== part.innerHTML && !busy(part)) { part.replaceWith(document.importNode(next, true)); }
        });
        document.body.classList.remove("stale");
        wait = every;
      })
      .catch(function () {
        document.body.classList.add("stale");
        wait = Math.min(wait * 2, 60000);
      })
      .finally(function () { window.setTimeout(renew, wait); });
  }
  window.setTimeout(renew, wait);
})();

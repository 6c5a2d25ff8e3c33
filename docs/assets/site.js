// Tables that are wider than the page scroll by themselves: make them reachable by the keyboard.
addEventListener("load", () => {
  const wide = document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .md-typeset .figure");
  for (const one of wide) {
    if (one.scrollWidth > one.clientWidth) {
      one.tabIndex = 0;
      if (one.tagName !== "CODE") {
        one.setAttribute("role", "region");
        one.setAttribute("aria-label", "wide content, scrolls sideways");
      }
    }
  }
});

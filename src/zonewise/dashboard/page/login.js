// Says that the last token was refused, on the page that comes back from it.
document.getElementById("refused").hidden = !location.search.includes("refused");

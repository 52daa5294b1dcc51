// Shows that the last token was rejected.
document.getElementById("refused").hidden = !location.search.includes("refused");

// Scores of the site's search, in place of Sphinx's: pages before the API's objects.
var Scorer = {
  objNameMatch: 3,
  objPartialMatch: 2,
  objPrio: { 0: 1, 1: 0, 2: -1 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

/** What is wrong and what to do, as two sentences. Words of others may end in a mark of their own, and get no second one. */
export const sentences = (problem: string, mend: string): string =>
  `${problem}${/[.?!…]$/.test(problem) ? "" : "."} ${mend}`

/** Words of nodes, queue, fairness and administration, in English. */
export const operations = {} as const;

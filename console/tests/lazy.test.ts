import { expect, it } from "vitest";
import { again } from "../src/parts/lazy";

function failing(times: number): () => Promise<string> {
  let calls = 0;
  return async () => {
    calls += 1;
    if (calls <= times) throw new TypeError("Failed to fetch dynamically imported module");
    return `call ${calls}`;
  };
}

it("loads again what a lost network did not bring", async () => {
  expect(await again(failing(2), [0, 0])).toBe("call 3");
});

it("says what failed in the end", async () => {
  await expect(again(failing(3), [0, 0])).rejects.toThrow("Failed to fetch");
});

// The entry point that TensorBoard imports.
import { start } from "./app.js";

export async function render() {
  await start(document.body);
}

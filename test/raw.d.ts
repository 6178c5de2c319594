/** Files read as text by the test bundler. */
declare module "*?raw" {
  const text: string;
  export default text;
}

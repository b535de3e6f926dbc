// What every page begins with: the data that Python wrote for the figures, and how a compressed block is read.

const page = JSON.parse(document.getElementById("page-data").textContent);

/** A value that is computed when first asked for. */
function lazily(compute) {
  let value;
  return () => (value ??= compute());
}

/** The bytes of a data block: base64 of gzip. The text is dropped afterwards; it is the largest thing on the page. */
async function inflate(id) {
  const element = document.getElementById(id);
  const binary = atob(element.textContent);
  element.remove();
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

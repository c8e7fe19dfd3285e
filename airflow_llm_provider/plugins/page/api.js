// Airflow's public REST API, asked as whoever is logged in. The page lies at <base url>/llm/.

const API = "../api/v2";
const PAGE = 100;
const AT_A_TIME = 6;

// Asking again would bring the same.
export class Final extends Error {}
export class NotFound extends Final {}

async function sent(url) {
  try {
    return await fetch(url, { headers: { Accept: "application/json" }, credentials: "same-origin" });
  } catch {
    throw new Error("Airflow could not be reached");
  }
}

export async function get(path, query = {}) {
  const url = `${API}${path}?${new URLSearchParams(query)}`;
  const answer = await sent(url);
  if (answer.status === 401) {
    // As Airflow's own UI does: log in, and come back here.
    location.assign(`${API}/auth/login?${new URLSearchParams({ next: location.href })}`);
    return new Promise(() => {});
  }
  if (answer.status === 403) throw new Final("You may not read the XComs of this DAG; ask for that permission.");
  if (answer.status === 404) throw new NotFound("There is no such run, or it was deleted.");
  if (answer.status < 500 && answer.status !== 408 && answer.status !== 429 && !answer.ok) {
    throw new Final(`Airflow's API answered ${answer.status} to this page's question.`);
  }
  if (!answer.ok) throw new Error(`Airflow's API answered ${answer.status}`);
  return answer.json();
}

export async function all(path, list, query = {}) {
  const found = [];
  for (;;) {
    const answer = await get(path, { ...query, limit: PAGE, offset: found.length });
    found.push(...answer[list]);
    if (answer[list].length === 0 || found.length >= answer.total_entries) return found;
  }
}

// A value never changes while its timestamp stays: what was read is not read again.
const known = new Map();

export async function value(run, entry) {
  const place = `${entry.task_id}/${entry.map_index}/${entry.key}`;
  const before = known.get(place);
  if (before?.timestamp === entry.timestamp) return before.value;
  const path = `${run}/taskInstances/${encodeURIComponent(entry.task_id)}/xcomEntries/${encodeURIComponent(entry.key)}`;
  let read = (await get(path, { map_index: entry.map_index })).value;
  try {
    // Some versions of Airflow answer with the JSON text that they keep, others with its value.
    if (typeof read === "string") read = JSON.parse(read);
  } catch {
    // A plain text.
  }
  known.set(place, { timestamp: entry.timestamp, value: read });
  return read;
}

export async function values(run, entries) {
  const found = new Array(entries.length);
  let next = 0;
  const worker = async () => {
    for (let at = next++; at < entries.length; at = next++) {
      try {
        found[at] = { ...entries[at], value: await value(run, entries[at]) };
      } catch (error) {
        // Cleared in the meantime.
        if (!(error instanceof NotFound)) throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, worker));
  return found.filter(Boolean);
}

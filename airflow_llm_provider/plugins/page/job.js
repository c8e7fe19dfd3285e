// One job: what a split planned, its shards completed, and the merge put together.

import { copied, count, counts, dollars, duration, element } from "./dom.js";

const KIND = { success: "good", pending: "left", empty_input: "left", truncated: "some", empty: "some", refused: "some" };
const kind = (status) => KIND[status] ?? "bad";

function sum(states) {
  const total = { rows: 0, rows_by_status: {}, requests: 0, reused: 0, usage: {}, cost_usd: 0 };
  for (const state of states) {
    total.requests += state.requests;
    total.reused += state.reused;
    total.cost_usd = total.cost_usd === null || state.cost_usd === null ? null : total.cost_usd + state.cost_usd;
    for (const [status, rows] of Object.entries(state.rows_by_status)) {
      total.rows_by_status[status] = (total.rows_by_status[status] ?? 0) + rows;
    }
    for (const name of ["prompt_tokens", "completion_tokens"]) {
      total.usage[name] = (total.usage[name] ?? 0) + (state.usage[name] ?? 0);
    }
  }
  return total;
}

function numbers(pairs) {
  return element("dl", { class: "numbers" },
    pairs.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text))));
}

function bar(rowsByStatus, rows) {
  const drawing = element("svg", { class: "bar", viewBox: "0 0 100 2", preserveAspectRatio: "none", role: "img",
    "aria-label": counts(rowsByStatus) || "no rows" });
  let at = 0;
  for (const [status, number] of Object.entries(rowsByStatus)) {
    const width = (100 * number) / Math.max(rows, 1);
    drawing.append(element("rect", { x: at, y: 0, width, height: 2, class: kind(status) },
      element("title", { svg: true }, `${count(number)} ${status}`)));
    at += width;
  }
  const items = Object.entries(rowsByStatus).map(([status, number]) =>
    element("li", { class: kind(status) }, `${count(number)} ${status}`));
  return [drawing, element("ul", { class: "legend" }, items)];
}

function totals(job) {
  const { estimate, summary } = job;
  const soFar = summary ?? sum(job.states.map((state) => state.value));
  const rows = summary ? summary.rows : estimate.rows;
  const byStatus = { ...soFar.rows_by_status };
  const untold = rows - Object.values(byStatus).reduce((one, other) => one + other, 0);
  if (untold > 0) byStatus.pending = (byStatus.pending ?? 0) + untold;
  return [
    numbers([
      ["Rows", count(rows)],
      ["Shards", count(estimate.shards)],
      ["Requests", count(soFar.requests)],
      ["Answers reused", count(soFar.reused)],
      ["Tokens in", count(soFar.usage.prompt_tokens)],
      ["Tokens out", count(soFar.usage.completion_tokens)],
      ["Cost", dollars(soFar.cost_usd)],
    ]),
    bar(byStatus, rows),
    element("p", { class: "quiet" }, summary
      ? "Rows are those of the output. Requests, tokens and cost are those of each shard's last try."
      : "Not merged yet: these are the shards that have ended so far, by their last try."),
  ];
}

function places(summary) {
  const places = [["Output folder", summary.destination], ["Manifest", summary.manifest],
    ["Rows without an answer", summary.rejects]];
  return [
    element("h3", {}, "Output"),
    element("div", { class: "places" }, places.flatMap(([name, uri]) => uri
      ? [element("span", {}, name), element("code", {}, uri), copied(uri)]
      : [element("span", {}, name), element("span", { class: "quiet" }, "none: every row has one"), ""])),
  ];
}

function shardRow(job, state, here) {
  const { value, task_id, map_index } = state;
  const link = map_index < 0 ? `${job.run}/tasks/${encodeURIComponent(task_id)}`
    : `${job.run}/tasks/${encodeURIComponent(task_id)}/mapped/${map_index}`;
  const number = (text) => element("td", { class: "number" }, text);
  return element("tr", { class: here ? "here" : undefined },
    element("td", {}, element("a", { href: link }, value.shard.label)),
    element("td", { class: value.status === "success" ? undefined : "bad" }, value.status),
    element("td", {}, counts(value.rows_by_status),
      value.message ? element("div", { class: "bad" }, value.message) : null),
    number(count(value.requests)), number(count(value.retries)), number(count(value.reused)),
    number(dollars(value.cost_usd)), number(duration(value.seconds)));
}

function shards(job, here) {
  if (job.states.length === 0) return [];
  const heads = ["Shard", "Last try", "Rows", "Requests", "Retries", "Reused", "Cost", "Time"];
  const head = heads.map((text, at) => element("th", { class: at > 2 ? "number" : undefined }, text));
  const bad = job.states.filter((state) => state.value.status !== "success").length;
  return [
    element("h3", {}, `Shards that have ended: ${count(job.states.length)} of ${count(job.estimate.shards)}`,
      bad ? element("span", { class: "bad" }, `, ${count(bad)} without success`) : null),
    element("div", { class: "table" }, element("table", {}, element("thead", {}, element("tr", {}, head)),
      element("tbody", {}, job.states.map((state) =>
        shardRow(job, state, state.task_id === here.task_id && String(state.map_index) === here.map_index))))),
  ];
}

function planned(estimate) {
  const cost = estimate.cost_high_usd === null ? "cost unknown"
    : `${dollars(estimate.cost_low_usd)} to ${dollars(estimate.cost_high_usd)} for what was not answered yet`;
  const aside = counts(estimate.set_aside);
  return element("p", { class: "quiet" },
    `Planned: ${count(estimate.requests)} requests, ${count(estimate.answered)} of them answered already, ` +
    `${count(estimate.prompt_tokens)} tokens in, at most ${count(estimate.max_completion_tokens)} out, ${cost}` +
    (aside ? `; never sent: ${aside}` : ""));
}

export function show(job, here) {
  return element("section", { "data-job": job.name },
    element("h2", {}, job.name || "In this DAG"),
    job.dry ? element("p", {}, `Dry run: ${count(job.estimate.rows)} rows in ${count(job.estimate.shards)} shards; nothing was sent.`)
      : [totals(job), job.summary ? places(job.summary) : []].flat(Infinity),
    planned(job.estimate),
    job.dry ? [] : shards(job, here));
}

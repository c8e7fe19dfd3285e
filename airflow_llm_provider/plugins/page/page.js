// Reads a run's XComs (estimate, plan, shard states, summary) and shows them, again and again while it runs.

import { Final, all, get, values } from "./api.js";
import { element } from "./dom.js";
import { show } from "./job.js";

const here = Object.fromEntries(new URLSearchParams(location.search));
const EVERY_MS = 5000;
const LONGEST_MS = 60000;
const ENDED = new Set(["success", "failed"]);
const KEYS = ["estimate", "plan", "shard_state", "run_summary"];

const parent = (taskId) => taskId.slice(0, Math.max(0, taskId.lastIndexOf(".")));

async function jobsOf(run, runInUi) {
  const [estimates, plans, states, summaries] = await Promise.all(KEYS.map(async (key) =>
    values(run, await all(`${run}/taskInstances/~/xcomEntries`, "xcom_entries", { xcom_key: key }))));
  return estimates.filter((entry) => entry.value?.rows !== undefined).map((entry) => {
    const same = (other) => other.task_id === entry.task_id && other.map_index === entry.map_index;
    const plan = plans.find(same)?.value ?? "";
    // Of the same group, and of this plan: a split that was cleared may have made another one since.
    const near = (other) => parent(other.task_id) === parent(entry.task_id);
    const ofPlan = (id) => Boolean(plan) && Boolean(id) && plan.includes(id);
    return {
      name: parent(entry.task_id) + (entry.map_index < 0 ? "" : ` [${entry.map_index}]`),
      run: runInUi,
      dry: plan === "",
      estimate: entry.value,
      states: states.filter((state) => near(state) && plan !== "" && state.value?.shard && plan.endsWith(state.value.shard.plan))
        .sort((one, other) => one.value.shard.index - other.value.shard.index),
      summary: summaries.find((summary) => near(summary) && ofPlan(summary.value?.plan_id))?.value,
    };
  });
}

function head(run, link) {
  const when = run.logical_date ?? run.run_after;
  document.title = `${run.dag_id}: LLM run`;
  document.getElementById("head").replaceChildren(
    element("h1", {}, run.dag_id),
    element("p", { class: "quiet" }, element("a", { href: link }, run.dag_run_id), ` · ${run.state}`,
      when ? ` · ${when.slice(0, 16).replace("T", " ")} UTC` : "",
      run.partition_key ? ` · partition ${run.partition_key}` : ""));
}

async function refresh() {
  const names = [here.dag_id, here.run_id].map((name) => encodeURIComponent(name ?? ""));
  const path = `/dags/${names[0]}/dagRuns/${names[1]}`;
  const link = `../dags/${names[0]}/runs/${names[1]}`;
  const run = await get(path);
  const jobs = await jobsOf(path, link);
  head(run, link);
  document.getElementById("jobs").replaceChildren(...(jobs.length
    ? jobs.map((job) => show(job, here))
    : [element("p", { class: "quiet" }, "Nothing was planned in this run yet: no split has ended.")]));
  document.body.dataset.shown = run.state;
  return ENDED.has(run.state);
}

function tell(trouble) {
  const place = document.getElementById("trouble");
  place.textContent = trouble;
  place.hidden = trouble === "";
}

let pause = EVERY_MS;

async function follow() {
  try {
    if (!here.dag_id || !here.run_id) throw new Final("This page shows one run: open it by a task's link, Run summary.");
    const ended = await refresh();
    tell("");
    if (ended) return;
    pause = EVERY_MS;
  } catch (error) {
    if (error instanceof Final) {
      document.getElementById("jobs").replaceChildren();
      tell(error.message);
      return;
    }
    // What was read last stays, and who restarts Airflow is not asked all the time.
    pause = Math.min(2 * pause, LONGEST_MS);
    tell(`${error.message}. This is what it said last; it is asked again in ${pause / 1000} s.`);
  }
  setTimeout(follow, pause);
}

follow();

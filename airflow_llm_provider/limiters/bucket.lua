-- Second part of ledger.lua: the pace and the steps.

-- The pace ----------------------------------------------------------------------------------------------------------

local function rate_at(when)
  local grown = math.max(0, when - h[RATE_AT])
  local base = h[RATE_BASE] * 2 ^ math.min(grown / DOUBLING, DOUBLINGS)
  local ceiling = h[RATE_CEILING] * (1 + (grown / h[RATE_CALM]) ^ 3)
  return math.min(base, ceiling, UNLIMITED)
end

local function note_grant(at)
  local first = h[CYCLE_GRANTS] == 0
  local idle = at - (first and h[CYCLE_AT] or math.max(h[LAST_AT], h[CYCLE_AT]))
  if first or idle > IDLE then
    h[CYCLE_AT] = at
    h[CYCLE_GRANTS] = 0
    if first or h[RATE_CEILING] < UNLIMITED then h[RATE_AT] = h[RATE_AT] + idle end
  end
  h[CYCLE_GRANTS] = h[CYCLE_GRANTS] + 1
end

local function learn_from_episode()
  local before, floor = h[EPISODE_RATE], h[EPISODE_FLOOR]
  local accepted = h[EPISODE_GRANTS] - h[EPISODE_REFUSED]
  if accepted <= 0 then
    local lowest = before < UNLIMITED and math.max(before * DEEPEST_CUT, floor, LOWEST_RATE) or UNLIMITED
    h[RATE_BASE] = math.max(math.min(BARREN_RATE, lowest), floor)
    h[RATE_CEILING] = lowest
    return
  end
  local rate = CAUTION * accepted / math.max(h[EPISODE_SECONDS], h[EPISODE_PAUSE], SHORTEST_CYCLE)
  if before < UNLIMITED then rate = math.min(math.max(rate, before * DEEPEST_CUT, floor), before * (floor > 0 and KNOWN_CAUTION or CAUTION)) end
  h[RATE_BASE] = math.max(rate, LOWEST_RATE)
  h[RATE_CEILING] = h[RATE_BASE]
  if floor == 0 and rate < CONFIRMED * h[EPISODE_CEILING] then h[RATE_CALM] = FIRST_CALM end
end

local function learn()
  learn_from_episode()
  if h[STREAK] >= TELLING_STREAK and h[STREAK_PAUSED] > 0 then
    local kept = math.min(CAUTION * h[STREAK_ACCEPTED] / h[STREAK_PAUSED], h[EPISODE_RATE])
    if kept > h[RATE_CEILING] then h[RATE_BASE], h[RATE_CEILING] = kept, kept end
  end
end

local function note_streak(going_on)
  if going_on then
    local accepted = math.max(0, h[EPISODE_GRANTS] - h[EPISODE_REFUSED])
    h[STREAK] = h[STREAK] + 1
    h[STREAK_ACCEPTED] = FADING * h[STREAK_ACCEPTED] + accepted
    h[STREAK_PAUSED] = FADING * h[STREAK_PAUSED] + h[EPISODE_PAUSE]
  else
    h[STREAK], h[STREAK_ACCEPTED], h[STREAK_PAUSED] = 0, 0, 0
  end
end

local function begin_episode(known_rate)
  local learned = h[RATE_CEILING] < UNLIMITED
  note_streak(learned and known_rate >= UNLIMITED and now - h[CYCLE_AT] < FIRST_CALM)
  h[EPISODE_RATE] = learned and math.min(known_rate, rate_at(now)) or known_rate
  h[EPISODE_CEILING] = h[RATE_CEILING]
  h[EPISODE_GRANTS] = h[CYCLE_GRANTS]
  h[EPISODE_SECONDS] = math.max(0, now - h[CYCLE_AT])
  h[EPISODE_REFUSED], h[EPISODE_PAUSE], h[CYCLE_GRANTS] = 0, 0, 0
  h[PAUSE_BEGAN], h[CYCLE_AT] = now, now
  if known_rate < UNLIMITED then
    h[EPISODE_FLOOR] = KNOWN_CAUTION * h[USED_REQUESTS] / span
    h[RATE_CALM] = KNOWN_CALM
  else
    h[EPISODE_FLOOR] = 0
    h[RATE_CALM] = learned and math.min(h[RATE_CALM] * 2, LONGEST_CALM) or FIRST_CALM
  end
end

-- The steps ---------------------------------------------------------------------------------------------------------

local function limits(max_requests, max_tokens, learns)
  if learns then
    local share = window / 60
    if h[LEARNED_REQUESTS] ~= 0 then
      max_requests = math.min(max_requests, math.max(1, h[LEARNED_REQUESTS] * share))
    end
    if h[LEARNED_TOKENS] ~= 0 then
      max_tokens = math.min(max_tokens, math.max(1, h[LEARNED_TOKENS] * share))
    end
  end
  return max_requests, max_tokens
end

local function exact(number)
  return string.format('%.17g', number)
end

local steps = {}

local function take_one(max_requests, max_tokens, terms_burst, learns, tokens, least, horizon, since)
  if h[HALT_AT] >= since then return { 'halted', exact(h[HALT_KIND]), exact(h[HALT_AT]) } end
  if h[SCOPED_HALT_AT] >= since then
    return { 'halted', exact(h[SCOPED_HALT_KIND]), exact(h[SCOPED_HALT_AT]) }
  end
  max_requests, max_tokens = limits(max_requests, max_tokens, learns)
  if least > max_tokens then return { 'too_large', exact(max_tokens) } end
  tokens = math.min(tokens, max_tokens)
  local last_at, paused_until = h[LAST_AT], h[PAUSED_UNTIL]
  if paused_until > now + horizon then return { 'later', exact(paused_until), '1' } end
  local start = math.max(now, last_at, paused_until)
  local learned = rate_at(start)
  local rate, token_rate = math.min(max_requests / span, learned), max_tokens / span
  local burst, token_burst
  if terms_burst > 0 then
    burst, token_burst = terms_burst - 1, (terms_burst - 1) * tokens
  else
    burst, token_burst = BURST_SHARE * max_requests, BURST_SHARE * max_tokens
  end
  if max_requests >= UNLIMITED or h[RATE_CEILING] < UNLIMITED then
    burst = math.min(burst, LEARNED_BURST * learned)
  end
  local at = math.max(
    start,
    last_at + (h[DEBT_REQUESTS] - burst) / rate,
    last_at + (h[DEBT_TOKENS] - token_burst) / token_rate
  )
  if at > now + horizon then return { 'later', exact(at), '0' } end
  local first = math.floor(at / width)
  local last = horizon < UNLIMITED and math.floor((now + horizon) / width) or first + HELD
  local slot = first_fit(first, last, tokens, max_requests, max_tokens)
  if slot < 0 then return { 'later', exact(now + horizon), '0' } end
  if slot > first then at = math.max(at, slot * width) end
  note_grant(at)
  local passed = at - last_at
  h[DEBT_REQUESTS] = math.max(0, h[DEBT_REQUESTS] - rate * passed) + 1
  h[DEBT_TOKENS] = math.max(0, h[DEBT_TOKENS] - token_rate * passed) + tokens
  h[LAST_AT] = at
  charge(slot, 1, tokens)
  return { 'grant', exact(at), exact(slot), exact(tokens) }
end

function steps.take(max_requests, max_tokens, burst, learns, wanted, horizon, since)
  local answers = {}
  for _, want in ipairs(wanted) do
    local answer = take_one(max_requests, max_tokens, burst, learns, want[1], want[2], horizon, since)
    table.insert(answers, answer)
    if answer[1] == 'later' then break end
  end
  return answers
end

function steps.settle(slot, requests, tokens)
  charge(slot, requests, tokens)
  h[DEBT_REQUESTS] = math.max(0, h[DEBT_REQUESTS] + requests)
  h[DEBT_TOKENS] = math.max(0, h[DEBT_TOKENS] + tokens)
  return {}
end

function steps.give_back(slot, tokens, made)
  steps.settle(slot, -1, -tokens)
  if made > h[PAUSE_BEGAN] then
    h[CYCLE_GRANTS] = math.max(0, h[CYCLE_GRANTS] - 1)
  elseif h[EPISODE_GRANTS] > 0 then
    h[EPISODE_GRANTS] = h[EPISODE_GRANTS] - 1
    learn()
  end
  return {}
end

function steps.delay(slot, later, tokens)
  advance(later)
  charge(slot, -1, -tokens)
  charge(later, 1, tokens)
  return {}
end

function steps.refuse(max_requests, max_tokens, learns, granted_at, seconds)
  max_requests = limits(max_requests, max_tokens, learns)
  local known_rate = max_requests < UNLIMITED and max_requests / span or UNLIMITED
  if not granted_at or granted_at > h[PAUSE_BEGAN] then
    begin_episode(known_rate)
  elseif now > h[PAUSED_UNTIL] then
    seconds = 0
  end
  h[EPISODE_REFUSED] = h[EPISODE_REFUSED] + 1
  local pause_until = now + math.min(seconds, LONGEST_PAUSE)
  if seconds > 0 and pause_until > h[PAUSED_UNTIL] then
    h[PAUSED_UNTIL], h[CYCLE_AT], h[RATE_AT] = pause_until, pause_until, pause_until
    h[EPISODE_PAUSE] = pause_until - h[PAUSE_BEGAN]
  end
  learn()
  return {}
end

local function drift(limit, left, used)
  if limit <= 0 or left < 0 then return 0 end
  local difference = limit - used - left
  return difference > math.max(1, TOLERANCE * limit) and difference or 0
end

function steps.observe(slot, limit_requests, limit_tokens, left_requests, left_tokens)
  if limit_requests > 0 then h[LEARNED_REQUESTS] = limit_requests end
  if limit_tokens > 0 then h[LEARNED_TOKENS] = limit_tokens end
  if slot <= h[OBSERVED] or h[TAIL] - slot > RING - SLOTS then return {} end
  local requests = drift(limit_requests, left_requests, h[USED_REQUESTS])
  local tokens = drift(limit_tokens, left_tokens, h[USED_TOKENS])
  if requests == 0 and tokens == 0 then return {} end
  local used_requests, used_tokens = used_before(slot)
  requests = drift(limit_requests, left_requests, used_requests)
  tokens = drift(limit_tokens, left_tokens, used_tokens)
  if requests > 0 or tokens > 0 then
    h[OBSERVED] = slot
    charge(slot, requests, tokens)
  end
  return {}
end

function steps.halt(kind)
  h[TRUSTED_SCOPE] = 0
  if kind < KINDS then
    h[HALT_AT], h[HALT_KIND] = now, kind
  else
    h[SCOPED_HALT_AT], h[SCOPED_HALT_KIND] = now, kind
  end
  return {}
end

function steps.trust(scope, made)
  if math.max(h[HALT_AT], h[SCOPED_HALT_AT]) < made then h[TRUSTED_AT], h[TRUSTED_SCOPE] = now, scope end
  return {}
end

function steps.is_trusted(scope)
  local age = now - h[TRUSTED_AT]
  return { h[TRUSTED_SCOPE] == scope and age >= 0 and age <= TRUST and 1 or 0 }
end

load()
local answers = { exact(now), '' }
for _, op in ipairs(call.ops) do
  table.insert(answers, steps[op[1]](unpack(op, 2)))
end
save()
-- When the last pause or halt began: it overtakes every grant made before.
answers[2] = exact(math.max(h[PAUSE_BEGAN], h[HALT_AT], h[SCOPED_HALT_AT]))
return answers

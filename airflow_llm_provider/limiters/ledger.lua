-- The bucket of engine/limits, for Redis: the same steps on the same numbers, as one atomic call on the server's time.
-- First part: the call, the state and the ledger. The pace and the steps are in bucket.lua, which is put after it.
--
-- KEYS[1] is a string of little-endian doubles laid out as in engine/limits/state.py, whose names and constants are
-- put before this text. ARGV[1] is JSON: window, now (false: the server's time), seen (the server's time when this
-- sender last heard from it; 0: never), ops (lists of a name and its arguments). Returns the time, when the last pause or
-- halt began, and one list an op.

local key = KEYS[1]
local call = cjson.decode(ARGV[1])
local window = call.window
local width = window / SLOTS
local span = window * HELD / SLOTS
local now = call.now
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end
local h = {} -- the header, by 1-based field

local HEADER_FORMAT = '<' .. string.rep('d', HEADER)
local NOTHING = string.rep('\0', 16)

-- The state ---------------------------------------------------------------------------------------------------------

local function initialise(wait)
  for field = 1, HEADER do h[field] = 0 end
  redis.call('SET', key, string.rep('\0', 8 * LENGTH))
  h[WINDOW] = window
  h[TAIL] = math.floor(now / width)
  h[OBSERVED] = h[TAIL] - 1
  h[LAST_AT] = now
  h[TOUCHED] = now
  h[BOOT] = now -- here: when the state was made
  h[PAUSE_BEGAN] = -math.huge
  h[HALT_AT] = -math.huge
  h[SCOPED_HALT_AT] = -math.huge
  h[RATE_BASE] = FIRST_RATE
  h[RATE_CEILING] = UNLIMITED
  h[RATE_CALM] = FIRST_CALM
  h[MAGIC] = LAYOUT
  h[PAUSED_UNTIL] = wait > 0 and now + wait or 0
  h[CYCLE_AT] = now + wait
  h[RATE_AT] = now + wait
end

local function load()
  local length = redis.call('STRLEN', key)
  if length == 0 then
    -- A sender that was here a moment ago knows of a state that is gone: its window may be used up.
    initialise(call.seen > now - span and span or 0)
    return
  end
  if length == 8 * LENGTH then
    h = { struct.unpack(HEADER_FORMAT, redis.call('GETRANGE', key, 0, 8 * HEADER - 1)) }
  end
  if h[MAGIC] ~= LAYOUT or h[WINDOW] ~= window or h[TOUCHED] > now + 5 then
    initialise(span) -- not ours, or another server's time: unknown is never "no limit"
  elseif h[BOOT] > call.seen and call.seen > now - span then
    -- Made anew by another sender while this one was away.
    h[PAUSED_UNTIL] = math.max(h[PAUSED_UNTIL], call.seen + span)
  end
end

local function save()
  h[TOUCHED] = math.max(h[TOUCHED], now)
  redis.call('SETRANGE', key, 0, struct.pack(HEADER_FORMAT, unpack(h, 1, HEADER)))
  redis.call('PEXPIRE', key, math.ceil(1000 * (86400 + math.max(0, h[PAUSED_UNTIL] - now))))
end

-- The ledger --------------------------------------------------------------------------------------------------------

local function offset(slot)
  return 8 * (HEADER + 2 * (slot % RING))
end

local function entry(slot)
  local requests, tokens = struct.unpack('<dd', redis.call('GETRANGE', key, offset(slot), offset(slot) + 15))
  return requests, tokens
end

-- Call `act` with the first of `count` slots and their number, once or, where the ring wraps, twice.
local function each_run(slot, count, act)
  local unwrapped = math.min(count, RING - slot % RING)
  act(slot, unwrapped)
  if count > unwrapped then act(slot + unwrapped, count - unwrapped) end
end

local function leave(slot, count)
  local raw = redis.call('GETRANGE', key, offset(slot), offset(slot) + 16 * count - 1)
  if raw == string.rep(NOTHING, count) then return end
  for position = 1, 16 * count, 16 do
    if string.sub(raw, position, position + 15) ~= NOTHING then
      local requests, tokens = struct.unpack('<dd', raw, position)
      h[USED_REQUESTS] = h[USED_REQUESTS] - requests
      h[USED_TOKENS] = h[USED_TOKENS] - tokens
    end
  end
end

local function blank(slot, count)
  redis.call('SETRANGE', key, offset(slot), string.rep(NOTHING, count))
end

local function advance(slot)
  local tail = h[TAIL]
  if slot <= tail then return end
  local steps = slot - tail
  if steps >= RING then
    redis.call('SETRANGE', key, 8 * HEADER, string.rep(NOTHING, RING))
    h[USED_REQUESTS], h[USED_TOKENS] = 0, 0
  else
    -- In portions, so that what enters never overwrites what has yet to leave.
    local next_slot = tail + 1
    while next_slot <= slot do
      local count = math.min(slot - next_slot + 1, RING - HELD)
      each_run(next_slot - HELD, count, leave)
      each_run(next_slot, count, blank)
      next_slot = next_slot + count
    end
  end
  h[TAIL] = slot
end

local function first_fit(first, last, tokens, max_requests, max_tokens)
  local slot = math.max(first, h[TAIL])
  advance(slot)
  while h[USED_REQUESTS] + 1 > max_requests or h[USED_TOKENS] + tokens > max_tokens do
    if slot >= last then return -1 end
    slot = slot + 1
    advance(slot)
  end
  return slot
end

local function charge(slot, requests, tokens)
  local age = h[TAIL] - slot
  if age >= RING then return end
  local had_requests, had_tokens = entry(slot)
  requests = math.max(requests, -had_requests)
  tokens = math.max(tokens, -had_tokens)
  redis.call('SETRANGE', key, offset(slot), struct.pack('<dd', had_requests + requests, had_tokens + tokens))
  if age < HELD then
    h[USED_REQUESTS] = h[USED_REQUESTS] + requests
    h[USED_TOKENS] = h[USED_TOKENS] + tokens
  end
end

local function used_before(slot)
  local requests, tokens = 0, 0
  for number = slot - SLOTS + 1, slot do
    local of_slot, tokens_of_slot = entry(number)
    requests, tokens = requests + of_slot, tokens + tokens_of_slot
  end
  return requests, tokens
end

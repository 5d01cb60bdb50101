-- Claims that had not told their end when their unit got its result are late: field `late` =
-- ',<position>:<fence>:<attempt>,...' of the page, and of the job when the page is gone. What they bring yet was a paid
-- call, and is counted once; what any other claim brings is a repeat. Those that bring nothing more are of calls that
-- may have reached the provider and are counted nowhere else: one an attempt, which is '' where no call was to follow.

-- Notes the claims of a unit that have not told their end, now that another one's result is there.
local function note_late(page, position, u, fence)
  for _, c in ipairs(u and u.claims or {}) do
    if c.ending == '' and c.fence > 0 and c.fence ~= fence then
      local list = redis.call('HGET', page, 'late') or ','
      local call = c.verdict == 'run' and c.attempt or ''
      redis.call('HSET', page, 'late', list .. string.format('%d:%d:%s,', position, c.fence, call))
    end
  end
end

-- Whether a claim is noted as late in a hash's field; it is not any more.
local function was_late(key, field, position, fence)
  local list, name = redis.call('HGET', key, field) or '', string.format(',%d:%d', position, fence)
  local from = string.find(list, name .. ':', 1, true) or string.find(list, name .. ',', 1, true)
  if not from then return false end
  local to = string.find(list, ',', from + 1, true)
  list = string.sub(list, 1, from) .. string.sub(list, to + 1)
  if list == ',' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, list) end
  return true
end

-- The field of a job that holds a page's late claims when the page is gone.
local function late_of_page(lane, number) return 'late:' .. lane .. '|' .. number end

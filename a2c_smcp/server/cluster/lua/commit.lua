-- Commits a change as a whole, or not at all: only under a live lease, and only if no office has changed since its
-- snapshot was read.

local node, epoch, change = ARGV[2], ARGV[3], cjson.decode(ARGV[4])

if not is_leased(node, epoch) then
    return { 'lost' }
end
if #change.enters > 0 and redis.call('EXISTS', prefix .. 'awaited') == 1 then
    return { 'awaiting' }
end

local seen = {}
for _, expected in ipairs(change.expects) do
    if version(expected[1]) ~= expected[2] then
        return { 'conflict' }
    end
    seen[expected[1]] = true
end

-- The decision must have seen every seat of the connection that enters, and of the older one that it replaces.
for _, sid in ipairs(change.movers) do
    for _, office in ipairs(redis.call('HKEYS', key('sid', sid))) do
        if not seen[office] then
            return { 'conflict' }
        end
    end
end

-- One client has one connection: its instance must still be where the decision has found it.
for _, instance in ipairs(change.instances) do
    local holder = redis.call('GET', key('instance', instance))
    if holder and holder ~= change.by and holder ~= change.replaces then
        return { 'conflict' }
    end
end

local at, since = stamp(), {}
for _, leave in ipairs(change.leaves) do
    since[leave[1]] = unseat(leave[1], leave[2]).since
end
for _, enter in ipairs(change.enters) do
    seat(enter[1], enter[2], at, since[enter[1]] or at, node, enter[3])
end
return { 'ok', publish(at, { by = change.by, replaces = change.replaces, lost = change.lost }) }

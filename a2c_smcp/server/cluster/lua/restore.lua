-- A node that is back seats its members again. If another client has taken a seat meanwhile, the one that has held it
-- for longer gets it. A client that is back on another connection keeps that one.
-- Answers what became of each seat.

local node, epoch, leaves, seats = ARGV[2], ARGV[3], cjson.decode(ARGV[4]), cjson.decode(ARGV[5])
if not is_leased(node, epoch) then
    return { 'lost' }
end

local at, outcomes, displaced = stamp(), {}, {}

local function outcome(office, field, since, what)
    local holder, sid, instance = record(office, field), unpack(cjson.decode(what), 1, 2)
    local known = instance ~= cjson.null and redis.call('GET', key('instance', instance))
    if holder and holder.sid == sid then
        return 'kept'
    end
    if known and known ~= sid then
        return 'replaced'
    end
    if holder and tonumber(holder.since) <= tonumber(since) then
        return 'taken'
    end
    if holder then
        unseat(office, field)
        displaced[#displaced + 1] = { office, holder.sid }
    end
    seat(office, field, at, since, node, what)
    return 'seated'
end

for _, leave in ipairs(leaves) do
    local holder = record(leave[2], leave[3])
    if holder and holder.sid == leave[1] and holder.node == node then
        unseat(leave[2], leave[3])
    end
end
for i, each in ipairs(seats) do
    outcomes[i] = outcome(unpack(each, 1, 4))
end
return { 'ok', outcomes, publish(at, { displaced = displaced, lost = true }) }

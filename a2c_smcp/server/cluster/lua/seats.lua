-- What all scripts share: the clock, the lease, and how seats are taken and freed. It is put before each of them.
--
-- A seat is a field of its office, `A` or `c:<name>`, with the value "<at> <since> <node> <seat>": when it was written,
-- since when its client has held it, whose lease it belongs to, and [sid, instance, owner, version, name] as JSON.
-- Stamps are strings: as numbers they would lose digits on the way through JSON.

local prefix = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function key(kind, id)
    return prefix .. kind .. ':' .. id
end

local function text(number)
    return string.format('%.0f', number)
end

-- Microseconds that only ever grow: versions, epochs and ages, never used twice even if the store forgets everything.
local function stamp()
    local last = tonumber(redis.call('GET', prefix .. 'clock') or '0')
    local at = text(math.max(now, last + 1))
    redis.call('SET', prefix .. 'clock', at)
    return at
end

local function is_alive(node)
    local lapses = redis.call('ZSCORE', prefix .. 'leases', node)
    return lapses and tonumber(lapses) > now
end

local function is_leased(node, epoch)
    return is_alive(node) and redis.call('HGET', key('node', node), 'epoch') == epoch
end

local function version(office)
    return redis.call('HGET', key('office', office), 'v') or '0'
end

local function fields_of(sid)
    local fields, flat = {}, redis.call('HGETALL', key('sid', sid))
    for i = 1, #flat, 2 do
        fields[#fields + 1] = { flat[i], flat[i + 1] }
    end
    return fields
end

local function record(office, field)
    local value = redis.call('HGET', key('office', office), field)
    if not value then
        return nil
    end
    local since, node, seat = string.match(value, '^%d+ (%d+) (%S+) (.*)$')
    local sid, instance = unpack(cjson.decode(seat), 1, 2)
    return { sid = sid, instance = instance, since = since, node = node }
end

-- The offices that change, in order, each with what is published about it.
local turned, order = {}, {}

local function turn(office)
    if not turned[office] then
        turned[office] = { prev = version(office), leaves = {}, enters = {} }
        order[#order + 1] = office
        redis.call('HDEL', key('office', office), 'v')
    end
    return turned[office]
end

local function still_holds(sid, instance)
    for _, at in ipairs(fields_of(sid)) do
        if record(at[1], at[2]).instance == instance then
            return true
        end
    end
    return false
end

local function unseat(office, field)
    local seat = record(office, field)
    table.insert(turn(office).leaves, field)
    redis.call('HDEL', key('office', office), field)
    redis.call('HDEL', key('sid', seat.sid), office)
    if seat.instance ~= cjson.null and not still_holds(seat.sid, seat.instance) then
        redis.call('DEL', key('instance', seat.instance))
    end
    if redis.call('EXISTS', key('sid', seat.sid)) == 0 then
        redis.call('SREM', key('held', seat.node), seat.sid)
    end
    return seat
end

local function seat(office, field, at, since, node, what)
    local value = at .. ' ' .. since .. ' ' .. node .. ' ' .. what
    local sid, instance = unpack(cjson.decode(what), 1, 2)
    table.insert(turn(office).enters, { field, value })
    redis.call('HSET', key('office', office), field, value)
    redis.call('HSET', key('sid', sid), office, field)
    redis.call('SADD', key('held', node), sid)
    if instance ~= cjson.null then
        redis.call('SET', key('instance', instance), sid)
    end
end

-- Gives the changed offices their new version, and publishes the changes. An office without a seat is gone, at '0'.
local function publish(at, about)
    local told = {}
    for _, office in ipairs(order) do
        local news, hash = turned[office], key('office', office)
        news.at, news.version = at, '0'
        if redis.call('EXISTS', hash) == 1 then
            news.version = at
            redis.call('HSET', hash, 'v', at)
        end
        for name, value in pairs(about) do
            news[name] = value
        end
        local message = cjson.encode(news)
        redis.call('PUBLISH', key('at', office), '+' .. message)
        told[#told + 1] = office
        told[#told + 1] = message
    end
    return told
end

-- A node takes a lease under a new epoch. A name that another process still holds a lease under is not given away,
-- and one that another process has died under only once its seats are gone. A process that has retired leaves its seats
-- to its successor.
--
-- `run` is the life of the store, `remembers` the one in which the node had its last lease. If they differ, the store
-- may have forgotten seats that nodes go on serving until their leases end by their own clocks. So no newcomer is
-- seated until every node that is remembered has come back, or must have stopped.

local node, process, run, remembers, ttl = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local facts, peers = cjson.decode(ARGV[7]), cjson.decode(ARGV[8])
local mine, leases, awaited = key('node', node), prefix .. 'leases', prefix .. 'awaited'

local holder = redis.call('HGET', mine, 'process')
local has_retired = holder == '' and is_alive(node)
if holder and holder ~= process and not has_retired then
    if is_alive(node) then
        return { 'taken', text(redis.call('ZSCORE', leases, node) - now) }
    end
    if redis.call('EXISTS', key('held', node)) == 1 then
        return { 'haunted' }
    end
end

if redis.call('HGET', prefix .. 'run', 'id') ~= run then
    redis.call('HSET', prefix .. 'run', 'id', run, 'since', text(now))
end
local patience = tonumber(redis.call('HGET', prefix .. 'run', 'since')) + ttl - now
if remembers ~= '' and remembers ~= run and patience > 0 then
    redis.call('SADD', awaited, node)
    for _, peer in ipairs(peers) do
        if not (is_alive(peer) and redis.call('HGET', key('node', peer), 'run') == run) then
            redis.call('SADD', awaited, peer)
        end
    end
    redis.call('PEXPIRE', awaited, math.ceil(patience / 1000))
end

local epoch = stamp()
redis.call('HSET', mine, 'epoch', epoch, 'process', process, 'run', run, 'url', facts.url, 'started_at', facts.started_at)
redis.call('ZADD', leases, now + ttl, node)
redis.call('PUBLISH', prefix .. 'nodes', '+' .. node)
return { 'ok', epoch, redis.call('ZRANGE', leases, 0, -1) }

-- Frees the seats of a node whose lease has ended, some at a time; with the last one the node is forgotten.
-- Answers how many seats were freed, and whether there are more.

local node, most = ARGV[2], tonumber(ARGV[3])
if is_alive(node) then
    return { 0, 0 }
end

local freed = 0
for _, sid in ipairs(redis.call('SRANDMEMBER', key('held', node), most)) do
    for _, at in ipairs(fields_of(sid)) do
        unseat(at[1], at[2])
        freed = freed + 1
    end
    redis.call('SREM', key('held', node), sid)
end
if freed > 0 then
    publish(stamp(), { buried = node, lost = true })
end
if redis.call('EXISTS', key('held', node)) == 1 then
    return { freed, 1 }
end
if redis.call('ZREM', prefix .. 'leases', node) == 1 then
    redis.call('PUBLISH', prefix .. 'nodes', '-' .. node)
end
redis.call('DEL', key('node', node))
return { freed, 0 }

-- A node gives up its lease. Its seats are kept a while longer, for members that resume on another node.

local node, epoch, linger = ARGV[2], ARGV[3], tonumber(ARGV[4])
if not is_leased(node, epoch) then
    return 'lost'
end
if redis.call('EXISTS', key('held', node)) == 1 then
    redis.call('ZADD', prefix .. 'leases', now + linger, node)
    redis.call('HSET', key('node', node), 'epoch', stamp(), 'process', '')
    return 'lingers'
end
redis.call('ZREM', prefix .. 'leases', node)
redis.call('DEL', key('node', node))
redis.call('PUBLISH', prefix .. 'nodes', '-' .. node)
return 'gone'

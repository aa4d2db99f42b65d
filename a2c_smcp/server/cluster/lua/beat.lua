-- A node renews its lease. Answers the nodes whose lease has ended.

local node, epoch, ttl = ARGV[2], ARGV[3], tonumber(ARGV[4])
if not is_leased(node, epoch) then
    return { 'lost' }
end
redis.call('ZADD', prefix .. 'leases', now + ttl, node)
return { 'ok', redis.call('ZRANGEBYSCORE', prefix .. 'leases', '-inf', now, 'LIMIT', 0, 16) }

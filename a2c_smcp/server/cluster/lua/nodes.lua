-- Every node that has a lease, or had one and is not buried yet.

local found, leases = {}, redis.call('ZRANGE', prefix .. 'leases', 0, -1, 'WITHSCORES')
for i = 1, #leases, 2 do
    local epoch, url, started = unpack(redis.call('HMGET', key('node', leases[i]), 'epoch', 'url', 'started_at'))
    local members = redis.call('SCARD', key('held', leases[i]))
    found[#found + 1] = { leases[i], epoch or '0', url or '', started or '0', text(leases[i + 1] - now), members }
end
return found

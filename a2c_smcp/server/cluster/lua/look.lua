-- The stamp of the last change that this answer shows, and the office unless it still has the version that is known.

local at = redis.call('GET', prefix .. 'clock') or '0'
if version(ARGV[2]) == ARGV[3] then
    return { at }
end
return { at, redis.call('HGETALL', key('office', ARGV[2])) }

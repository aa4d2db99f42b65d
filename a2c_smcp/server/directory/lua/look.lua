-- An office as it is, unless it still has the version that is known, and the stamp of the last change this can show.

local at = redis.call('GET', prefix .. 'clock') or '0'
if version(ARGV[2]) == ARGV[3] then
    return { at }
end
return { at, redis.call('HGETALL', key('office', ARGV[2])) }

-- Replaces a text, unless it is not what the node has read. An empty text is none. Answers whether it did so.
-- A text that is kept for ever (seconds are infinite) is published under its name as well.

local name, before, after, seconds = key('kept', ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
if (redis.call('GET', name) or '') ~= before then
    return 0
end
if after == '' then
    redis.call('DEL', name)
elseif seconds == math.huge then
    redis.call('SET', name, after)
    redis.call('PUBLISH', prefix .. ARGV[2], after)
else
    redis.call('SET', name, after, 'PX', math.max(1, math.floor(seconds * 1000)))
end
return 1

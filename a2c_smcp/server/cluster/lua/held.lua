-- Every seat that belongs to a node: sid, office, field.

local found = {}
for _, sid in ipairs(redis.call('SMEMBERS', key('held', ARGV[2]))) do
    for _, at in ipairs(fields_of(sid)) do
        found[#found + 1] = { sid, at[1], at[2] }
    end
end
return found

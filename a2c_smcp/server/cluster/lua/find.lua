-- Every seat of a connection: office, field, value.

local found = {}
for _, at in ipairs(fields_of(ARGV[2])) do
    found[#found + 1] = { at[1], at[2], redis.call('HGET', key('office', at[1]), at[2]) }
end
return found

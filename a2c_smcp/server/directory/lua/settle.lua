-- A node has seated its members again. Answers how many others are still waited for.

redis.call('SREM', prefix .. 'awaited', ARGV[2])
return redis.call('SCARD', prefix .. 'awaited')

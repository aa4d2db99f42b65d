-- A node has seated its members again. Answers how many nodes are still awaited.

redis.call('SREM', prefix .. 'awaited', ARGV[2])
return redis.call('SCARD', prefix .. 'awaited')

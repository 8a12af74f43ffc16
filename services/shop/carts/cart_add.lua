-- Puts lines into a cart, each once.
-- KEYS: cart, ledger. ARGV: at_ms, then for each line add_id, sku, quantity.
for first = 2, #ARGV, 3 do
  local add_id, sku, quantity = ARGV[first], ARGV[first + 1], tonumber(ARGV[first + 2])
  local entry = cjson.encode({sku = sku, quantity = quantity, at_ms = tonumber(ARGV[1])})
  if redis.call('HSETNX', KEYS[2], 'add:' .. add_id, entry) == 1 then
    redis.call('HINCRBY', KEYS[1], sku, quantity)
  end
end
return redis.call('HGETALL', KEYS[1])

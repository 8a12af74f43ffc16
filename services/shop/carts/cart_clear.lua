-- Takes an order's lines out of a cart, once; never takes out more than is in it.
-- KEYS: cart, ledger. ARGV: at_ms, order_id, then for each line sku, quantity.
-- Answers 1, or 0 when this order was taken out before.
if redis.call('HEXISTS', KEYS[2], 'order:' .. ARGV[2]) == 1 then
  return 0
end
local removed = {}
for first = 3, #ARGV, 2 do
  local sku, ordered = ARGV[first], tonumber(ARGV[first + 1])
  local held = tonumber(redis.call('HGET', KEYS[1], sku) or '0')
  local taken = math.min(held, ordered)
  if taken > 0 then
    removed[sku] = taken
  end
  if taken > 0 and redis.call('HINCRBY', KEYS[1], sku, -taken) == 0 then
    redis.call('HDEL', KEYS[1], sku)
  end
end
local entry = cjson.encode({removed = removed, at_ms = tonumber(ARGV[1])})
redis.call('HSET', KEYS[2], 'order:' .. ARGV[2], entry)
return 1

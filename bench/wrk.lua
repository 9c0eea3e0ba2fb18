-- The generator's script: what each connection asks for, and one line of JSON at the end.
--
--   wrk … URL                       the URL, again and again
--   wrk … URL pipeline DEPTH        DEPTH requests in one write
--   wrk … URL walk FORMAT COUNT     the files FORMAT % 0 … COUNT - 1 in turn, whichever
--                                   connection asks next
--
-- With WRK_HISTOGRAM in the environment the line also has every latency. That takes wrk a while,
-- so only where it is wanted.

local function pipeline(depth)
   -- wrk keeps what wrk.format() gives after init() as its one request, so replacing it costs no
   -- Lua call per request (a global `request` would).
   local requests = string.rep(wrk.format(), depth)
   wrk.format = function() return requests end
end

local function walk(format, count)
   local requests = {}
   for i = 0, count - 1 do
      requests[i + 1] = wrk.format(nil, string.format(format, i))
   end
   local at = 0
   request = function()
      at = at % count + 1
      return requests[at]
   end
end

function init(args)
   if args[1] == "pipeline" then
      pipeline(tonumber(args[2]))
   elseif args[1] == "walk" then
      walk(args[2], tonumber(args[3]))
   end
end

function done(summary, latency)
   local fields = {
      requests = summary.requests,
      bytes = summary.bytes,
      duration_us = summary.duration,
      connect_errors = summary.errors.connect,
      read_errors = summary.errors.read,
      write_errors = summary.errors.write,
      status_errors = summary.errors.status,
      timeouts = summary.errors.timeout,
   }
   local parts = {}
   for name, value in pairs(fields) do
      parts[#parts + 1] = string.format('"%s": %.0f', name, value)
   end
   if os.getenv("WRK_HISTOGRAM") then
      parts[#parts + 1] = '"histogram": {' .. histogram(latency) .. '}'
   end
   print("JSON {" .. table.concat(parts, ", ") .. "}")
end

-- Each latency in µs that was seen, and how often.
function histogram(latency)
   local counts = {}
   for i = 1, #latency do
      local us, count = latency(i)
      counts[i] = string.format('"%.0f": %.0f', us, count)
   end
   return table.concat(counts, ", ")
end

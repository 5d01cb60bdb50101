-- The score board: a mark for each unit, two digits of base 128 at its place (app/domain/scoreboard.py). Only results
-- that take effect are marked, in the same script, so the board never says another thing than they do.
local function write_mark(board, place, mark)
  redis.call('SETRANGE', board, 2 * place, string.char(math.floor(mark / 128), mark % 128))
end

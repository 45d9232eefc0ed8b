// Aligned text tables for people.
#include "base/table.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;  // Not a UTF-8 continuation byte.
  }));
}

bool LooksNumeric(const std::string& cell) {
  return cell.empty() || cell[0] == '-' || (cell[0] >= '0' && cell[0] <= '9');
}

std::string Padded(const std::string& cell, size_t width, bool right) {
  const std::string blanks(width - Width(cell), ' ');
  return right ? blanks + cell : cell + blanks;
}

std::vector<std::string> PrintableAll(std::vector<std::string> cells) {
  for (std::string& cell : cells)
    cell = Printable(cell);
  return cells;
}

}  // namespace

std::string FormatTable(const std::vector<std::string>& given_columns,
                        const std::vector<std::vector<std::string>>& given_rows) {
  const std::vector<std::string> columns = PrintableAll(given_columns);
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : given_rows)
    rows.push_back(PrintableAll(row));
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t c = 0; c < columns.size(); ++c) {
    widths.push_back(Width(columns[c]));
    right.push_back(!rows.empty());
    for (const auto& row : rows) {
      DSAT_CHECK(row.size() == columns.size());
      widths[c] = std::max(widths[c], Width(row[c]));
      if (!LooksNumeric(row[c])) right[c] = false;
    }
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns.size(); ++c) {
      if (c > 0) line += "  ";
      line += Padded(cell_of(c), widths[c], right[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  if (columns.empty()) return text;
  add_line([&](size_t c) { return columns[c]; });
  add_line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows)
    add_line([&](size_t c) { return row[c]; });
  return text;
}

}  // namespace dsat

// Text tables with aligned columns.
#include "base/table.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

constexpr size_t kGap = 2;

bool LooksNumeric(const std::string& cell) {
  return cell.empty() || cell[0] == '-' || (cell[0] >= '0' && cell[0] <= '9');
}

std::string Padded(const std::string& cell, size_t width, bool right) {
  const std::string blanks(width - std::min(width, CodePoints(cell)), ' ');
  return right ? blanks + cell : cell + blanks;
}

std::vector<std::string> PrintableAll(std::vector<std::string> cells) {
  for (std::string& cell : cells)
    cell = Printable(cell);
  return cells;
}

class Table {
 public:
  Table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows,
        size_t max_width)
      : columns_(PrintableAll(columns)) {
    for (const auto& row : rows) {
      DSAT_CHECK(row.size() == columns.size());
      rows_.push_back(PrintableAll(row));
    }
    for (size_t c = 0; c < columns.size(); ++c)
      MeasureColumn(c);
    if (max_width > 0) LimitLastColumn(max_width);
  }

  std::string Format() const {
    std::string text = Line(columns_);
    std::vector<std::string> rules;
    for (const size_t width : widths_)
      rules.emplace_back(width, '-');
    text += Line(rules);
    for (const auto& row : rows_)
      text += WrappedLines(row);
    return text;
  }

 private:
  void MeasureColumn(size_t c) {
    widths_.push_back(CodePoints(columns_[c]));
    right_.push_back(!rows_.empty());
    for (const auto& row : rows_) {
      widths_[c] = std::max(widths_[c], CodePoints(row[c]));
      if (!LooksNumeric(row[c])) right_[c] = false;
    }
  }

  void LimitLastColumn(size_t max_width) {
    size_t before = 0;
    for (size_t c = 0; c + 1 < widths_.size(); ++c)
      before += widths_[c] + kGap;
    const size_t left = std::max(max_width / 4, max_width > before ? max_width - before : 0);
    widths_.back() = std::min(widths_.back(), std::max(left, CodePoints(columns_.back())));
  }

  std::string Line(const std::vector<std::string>& cells) const {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      if (c > 0) line.append(kGap, ' ');
      line += Padded(cells[c], widths_[c], right_[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  std::string WrappedLines(const std::vector<std::string>& row) const {
    std::string text;
    std::vector<std::string> cells = row;
    for (const std::string& part : WrapText(row.back(), widths_.back())) {
      cells.back() = part;
      text += Line(cells);
      cells.assign(cells.size(), "");
    }
    return text;
  }

  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> widths_;
  std::vector<bool> right_;
};

}  // namespace

std::vector<std::string> WrapWords(const std::vector<std::string>& words, const std::string& blank,
                                   size_t width, size_t hanging) {
  std::vector<std::string> lines = {""};
  bool begins = true;
  for (const std::string& word : words) {
    const bool is_blank = lines.back().size() <= (lines.size() > 1 ? hanging : 0);
    if (!is_blank && CodePoints(lines.back()) + blank.size() + CodePoints(word) > width) {
      lines.emplace_back(hanging, ' ');
      begins = true;
    }
    lines.back() += (begins ? "" : blank) + word;
    begins = false;
  }
  return lines;
}

std::vector<std::string> WrapText(const std::string& text, size_t width, size_t hanging) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size(); begin += words.back().size() + 1)
    words.push_back(text.substr(begin, text.find(' ', begin) - begin));
  return WrapWords(words, " ", width, hanging);
}

std::string FormatTable(const std::vector<std::string>& columns,
                        const std::vector<std::vector<std::string>>& rows, size_t max_width) {
  return columns.empty() ? "" : Table(columns, rows, max_width).Format();
}

}  // namespace dsat

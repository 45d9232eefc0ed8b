// Aligned text tables for people.
#ifndef DSAT_BASE_TABLE_H_
#define DSAT_BASE_TABLE_H_

#include <string>
#include <vector>

namespace dsat {

// A header line, a rule and one line per row, columns two blanks apart; a column whose cells are
// all numbers (a unit may follow) is aligned right. Empty if there are no columns. Width is counted
// in code points; control characters are written out. If lines would be longer than `max_width`
// (0: no limit), the last column wraps at blanks, as far as it keeps a fourth of the width.
// REQUIRES: every row has columns.size() cells.
std::string FormatTable(const std::vector<std::string>& columns,
                        const std::vector<std::vector<std::string>>& rows, size_t max_width = 0);

}  // namespace dsat

#endif  // DSAT_BASE_TABLE_H_

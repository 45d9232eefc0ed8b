// Documents, packed into one sequence of tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/text_codec.h"
#include "engine/data/token_source.h"

namespace dsat::engine {

// The documents of the files, one after the other, each with codec.end_of_text() behind it: the
// texts at `text_key` of JSON Lines, or else those at "completion" behind those at "prompt", whose
// tokens are no targets (TokenOf); or whole files if it is "". Empty texts are left out. Tokens
// of a tokenizer are kept in a file of the folder $XDG_CACHE_HOME/dsat (~/.cache/dsat), so that
// they are computed once, and again with a warning if the file's checksum says that it was altered;
// a new file replaces those that no run has read for 30 days. Throws as MappedText, and
// kInvalidArgument naming the file and line of a line that is not such a document.
std::unique_ptr<TokenSource> OpenDocuments(const std::vector<std::string>& files,
                                           const TextCodec& codec, const std::string& text_key);

}  // namespace dsat::engine

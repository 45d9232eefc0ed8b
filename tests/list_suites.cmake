# Writes CTest's commands for the suites of a test program, one test each: a sanitizer makes starting
# a process slow. cmake -DPROGRAM=FILE -DOUTPUT=FILE -DPROPERTIES=LIST -P list_suites.cmake
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\." suites "${listed}")  # Tests are indented.
list(TRANSFORM suites STRIP)
set(commands "")
foreach(suite ${suites})
  string(APPEND commands "add_test([==[${suite}*]==] [==[${PROGRAM}]==]"
                         " [==[--gtest_filter=${suite}*]==])\n"
                         "set_tests_properties([==[${suite}*]==] PROPERTIES ${PROPERTIES})\n")
endforeach()
file(WRITE ${OUTPUT} "${commands}")

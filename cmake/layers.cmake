# One object library per folder of src/, in order of dependency: a layer sees only those before it.
# A layer that has no file yet is skipped.
add_library(quern_flags INTERFACE)
target_include_directories(quern_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(quern_flags INTERFACE QUERN_VERSION="${PROJECT_VERSION}")
target_link_libraries(quern_flags INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})

set(QUERN_BELOW "") # the layers so far, for the next one and for its tests

function(quern_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/(tool/main|run/api)\\.c$")
  if(NOT sources)
    return()
  endif()
  add_library(quern_${name} STATIC ${sources})
  target_link_libraries(quern_${name} PUBLIC ${QUERN_BELOW} ${ARGN} quern_flags)
  set(QUERN_BELOW quern_${name} ${QUERN_BELOW} PARENT_SCOPE)
  set(QUERN_UPTO_${name} quern_${name} ${QUERN_BELOW} CACHE INTERNAL "")
endfunction()

# Decoders and encoders are loops over blocks, the same to the last bit on every machine.
file(GLOB codec CONFIGURE_DEPENDS src/base/decode*.c src/base/encode*.c src/base/fit.c)
set_source_files_properties(${codec} PROPERTIES COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>;-ffp-contract=off")
quern_layer(base)
quern_layer(device)
include(cmake/device.cmake)
quern_layer(format lib_jansson)
quern_layer(hub)
quern_layer(lang lib_jansson lib_pcre2 lib_utf8proc)
quern_layer(model lib_jansson)
quern_layer(quant)
quern_layer(run)
set(openapi ${PROJECT_SOURCE_DIR}/doc/openapi.json)
set_source_files_properties(src/serve/openapi.c PROPERTIES OBJECT_DEPENDS ${openapi}
                            COMPILE_DEFINITIONS QUERN_OPENAPI="${openapi}")
quern_layer(serve lib_jansson lib_event)
quern_layer(tool lib_edit)

if(EXISTS ${PROJECT_SOURCE_DIR}/src/tool/main.c)
  add_executable(quern src/tool/main.c)
  target_link_libraries(quern PRIVATE ${QUERN_BELOW} quern_flags)
  target_link_options(quern PRIVATE -pie)
  set_target_properties(quern PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  install(TARGETS quern RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The library: every layer up to run in one shared object that shows only what include/ declares.
if(TARGET quern_run AND NOT QUERN_STATIC)
  file(GLOB gpu_api CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/public*.c)
  add_library(libquern SHARED ${PROJECT_SOURCE_DIR}/src/run/api.c ${gpu_api})
  set_target_properties(libquern PROPERTIES OUTPUT_NAME quern VERSION ${PROJECT_VERSION} SOVERSION 0
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(libquern PRIVATE quern_run quern_flags)
  target_link_options(libquern PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libquern.map)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/quern.pc.in ${PROJECT_BINARY_DIR}/quern.pc @ONLY)
  install(TARGETS libquern LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/include/quern.h ${PROJECT_SOURCE_DIR}/include/quern_gpu.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${PROJECT_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

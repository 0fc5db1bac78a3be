"""List what Callslip promises and the tests that prove each promise.

`proof` names tests as `tests/test_x.py::test_y` or `tests/test_x.py::TestZ::test_y`, or is `Later(part)` for a promise
of a later release. tests/docs/test_requirements.py checks that the tests exist and that tests cite only known ids.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = ("postgres",)


class Later(NamedTuple):
    """The part of a later release that will keep the promise."""

    part: str


class Requirement(NamedTuple):
    """A promise with its proof."""

    id: str
    promise: str
    proof: tuple[str, ...] | Later


R = Requirement

CALLS = (
    R(
        "C1",
        "A call has one unique id, exec_ and 12 hex digits; ids of other systems are aliases of it.",
        (
            "tests/laws/test_laws.py::test_a_call_id_that_is_taken_is_generated_again",
            "tests/rules/test_lifecycle.py::test_a_call_may_have_several_foreign_ids",
            "tests/store/test_store.py::StoreSuite::test_a_call_is_found_by_id_prefix_alias_or_last",
        ),
    ),
    R(
        "C2",
        "A foreign id means the latest call with that id; a foreign id that starts again after the end is a new call.",
        (
            "tests/rules/test_lifecycle.py::test_a_foreign_id_resolves_to_the_newest_call_or_a_new_call",
            "tests/rules/test_lifecycle.py::test_a_foreign_id_reused_in_a_session_gives_four_calls",
            "tests/transcripts/test_importer.py::test_a_call_id_that_returns_in_a_later_turn_is_a_new_call",
            "tests/formats/test_acp.py::test_foreign_ids_reused_in_a_later_turn_are_new_calls",
            "tests/formats/test_openai.py::test_an_id_reused_in_every_response_is_a_new_call_each_time",
            "tests/ingest/test_recorder.py::test_equal_ids_in_two_rounds_are_two_calls",
        ),
    ),
    R(
        "C3",
        "Two calls with the same tool and the same arguments stay two calls.",
        (
            "tests/api/test_python_api.py::test_the_same_call_twice_is_two_calls",
            "tests/rules/test_lifecycle.py::test_each_opening_without_a_foreign_id_is_a_new_call",
            "tests/web/test_live.py::test_identical_commands_are_distinguished_by_id",
        ),
    ),
    R(
        "C4",
        "One table defines the nine states and their transitions; later events are recorded and change nothing.",
        (
            "tests/rules/test_lifecycle.py::test_the_matrix_matches_the_table_of_the_design",
            "tests/rules/test_lifecycle.py::test_late_events_change_only_the_late_note",
            "tests/laws/test_laws.py::test_a_call_ends_at_most_once_and_then_does_not_change",
        ),
    ),
    R(
        "C5",
        "No call stays open forever when a process dies or stops responding, and its end has a readable reason.",
        (
            "tests/ledger/test_liveness.py::test_calls_of_a_dead_owner_are_lost_when_the_ledger_opens",
            "tests/ledger/test_liveness.py::test_an_interrupted_turn_ends_its_calls_at_once",
            "tests/ledger/test_liveness.py::test_an_expired_approval_denies_the_call",
            "tests/faults/test_processes.py::test_a_process_killed_at_any_moment_loses_nothing_acknowledged",
            "tests/formats/test_every_format.py::test_a_truncated_case_leaves_no_open_call",
            "tests/formats/test_acp_captures.py::test_a_truncated_capture_has_no_open_call_and_verifies",
            "tests/wrap/test_wrap.py::test_an_agent_that_is_killed_within_a_call_ends_the_call",
            "tests/wrap/test_approvals.py::test_when_wrap_is_killed_no_request_stays_pending",
            "tests/wrap/test_approvals.py::test_a_client_that_disconnects_leaves_no_pending_request",
            "tests/web/test_demo.py::test_story_shows_every_feature",
        ),
    ),
    R(
        "C6",
        "No event is delivered or acknowledged before it is durably stored.",
        (
            "tests/ledger/test_feed.py::test_a_delivered_event_is_already_stored",
            "tests/faults/test_power.py::test_acknowledged_events_survive_a_power_cut_at_any_moment",
            "tests/faults/test_processes.py::test_a_process_killed_at_any_moment_loses_nothing_acknowledged",
            "tests/ingest/test_recorder.py::test_each_chunk_is_durable_before_the_caller_receives_it",
            "tests/wrap/test_wrap.py::test_fail_closed_passes_nothing_unrecorded",
        ),
    ),
    R(
        "C7",
        "Sending an event again with its key returns the first result; another body with that key is a conflict.",
        (
            "tests/laws/test_laws.py::test_a_repeated_draft_with_its_key_changes_nothing",
            "tests/laws/test_laws.py::test_a_used_key_with_another_body_is_refused_and_writes_nothing",
            "tests/ingest/test_importer.py::test_importing_a_file_twice_changes_nothing",
            "tests/ingest/test_importer.py::test_a_file_that_an_earlier_version_imported_adds_only_new_facts",
            "tests/formats/test_every_format.py::test_reading_a_case_twice_changes_nothing",
            "tests/http/test_http.py::test_a_body_with_a_repeated_idempotency_key_is_written_once",
        ),
    ),
    R(
        "C8",
        "The store numbers the events of a session from 1 without gaps; the order does not depend on clocks.",
        (
            "tests/laws/test_laws.py::test_events_are_numbered_from_1_without_gaps",
            "tests/faults/test_processes.py::test_four_processes_write_and_a_fifth_follows",
            "tests/store/test_store.py::StoreSuite::test_a_clock_running_backwards_does_not_change_the_event_order",
            "tests/http/test_streams.py::test_a_reader_that_reconnects_many_times_gets_each_event_once",
            "tests/http/test_streams.py::test_a_stream_continues_after_the_cursor_from_query_or_header",
        ),
    ),
    R(
        "C9",
        "Live fold, fold from disk and applied patches are byte-identical after every event.",
        (
            "tests/laws/test_laws.py::test_every_prefix_gives_the_same_state_in_all_four_folds",
            "tests/laws/test_laws.py::test_the_store_with_any_checkpoints_equals_the_fold_of_its_log",
            "tests/http/test_streams.py::test_a_page_that_reconnects_many_times_shows_the_session",
            "tests/web/test_stream.py::test_client_state_equals_the_ledger",
            "tests/ledger/test_queries.py::test_a_state_resumed_at_any_cursor_gives_the_same_patches",
            "tests/web/test_live.py::test_reload_at_any_time_shows_the_same",
            "tests/web/test_history.py::test_history_shows_the_same_as_export_at",
        ),
    ),
    R(
        "C10",
        "A field that an update omits stays unchanged; an explicit null clears it where the protocol says so.",
        (
            "tests/rules/test_fold.py::test_an_update_replaces_present_fields_and_keeps_absent_ones",
            "tests/model/test_events.py::test_absent_and_null_fields_are_distinct",
            "tests/formats/test_acp.py::test_absent_fields_of_an_update_stay_and_null_clears_them",
        ),
    ),
    R(
        "C11",
        "Broken or hostile content in one event leaves the rest of the session readable.",
        (
            "tests/ledger/test_validation.py::test_no_event_makes_a_session_unreadable",
            "tests/ledger/test_validation.py::test_a_chunk_with_a_wrong_field_leaves_its_session_writable",
            "tests/formats/test_acp.py::test_no_message_makes_the_decoder_raise",
            "tests/formats/test_every_format.py::test_no_message_makes_a_session_unreadable",
            "tests/ingest/test_importer.py::test_a_refused_part_does_not_affect_the_rest_of_its_message",
            "tests/web/test_page.py::test_hostile_text_is_escaped",
        ),
    ),
    R(
        "C12",
        "The cost of an event does not grow with the length of its session.",
        (
            "tests/laws/test_laws.py::test_a_write_runs_the_same_queries_for_short_and_long_sessions",
            "tests/laws/test_laws.py::test_a_long_text_is_stored_in_few_strings",
            "tests/ledger/test_checkpoint.py::test_a_checkpoint_is_made_after_some_events_and_at_the_end_of_a_turn",
            "tests/ledger/test_queries.py::test_the_cost_of_a_page_does_not_grow_with_the_session",
            "tests/http/test_streams.py::test_a_reader_that_is_far_behind_gets_a_snapshot",
            "tests/formats/test_ai_sdk_out.py::test_the_stream_grows_linearly_with_its_chunks",
            "tests/web/test_history.py::test_ten_thousand_rows_open_quickly_and_scroll",
        ),
    ),
    R(
        "C13",
        "One table translates each state into the state names of every format.",
        (
            "tests/model/test_state_names.py::test_state_names_match_the_table_of_the_design",
            "tests/model/test_state_names.py::test_every_state_has_names_in_every_protocol",
            "tests/formats/test_ai_sdk_out.py::test_every_state_has_its_name_and_the_original_in_metadata",
            "tests/formats/test_ai_sdk_v4.py::test_every_state_has_its_name",
            "tests/formats/test_ag_ui_out.py::test_every_state_has_its_name_and_the_original_in_metadata",
            "tests/formats/test_shell_out.py::test_every_state_has_its_name",
            "tests/formats/test_acp_out.py::test_every_state_has_its_name",
        ),
    ),
    R(
        "C14",
        "Input that a decoder still holds survives kill -9; held text is visible after at most a second of silence.",
        (
            "tests/faults/test_killed_server.py::test_no_acknowledged_message_is_lost_if_the_server_is_killed",
            "tests/ledger/test_held_text.py::test_only_the_end_that_may_begin_a_secret_is_held_back",
            "tests/ledger/test_held_text.py::test_text_held_by_a_killed_process_is_released_by_another",
        ),
    ),
    R(
        "C15",
        "Only a caller with the right to approve answers a request; one that no process would deliver is not offered.",
        (
            "tests/http/test_posted_answers.py::test_a_posted_answer_without_the_right_to_approve_is_refused",
            "tests/http/test_answer_places.py::test_no_interface_answers_a_request_of_an_external_agent",
        ),
    ),
    R(
        "C16",
        "Filters, counts and search cover the whole session. What a view cannot know, it does not claim.",
        (
            "tests/api/test_entry_filter.py::test_a_filter_covers_all_calls_of_a_long_session",
            "tests/web/test_true_views.py::test_filter_and_counts_cover_calls_that_are_not_loaded",
            "tests/web/test_true_views.py::test_page_without_its_server_claims_nothing",
        ),
    ),
)

SHELL = (
    R(
        "S0.1",
        "Shell tags in streamed text are found exactly once, no matter how the text is split into chunks.",
        (
            "tests/formats/test_shell.py::test_any_split_of_a_text_gives_the_same_commands",
            "tests/formats/test_shell.py::test_parsing_time_grows_linearly_with_the_text",
            "tests/formats/test_shell.py::test_any_split_of_a_stream_gives_the_same_entries",
        ),
    ),
    R(
        "S0.2",
        "A command is stripped of surrounding whitespace; an empty command is dropped and uses no number.",
        (
            "tests/formats/test_shell.py::test_the_text_between_the_tags_is_the_command",
            "tests/formats/test_shell.py::test_an_empty_command_is_not_numbered",
        ),
    ),
    R(
        "S0.3",
        "A command's id is its round and its index, both from zero; it is unique in its turn and shown in every turn.",
        (
            "tests/http/test_producer_ids.py::test_commands_have_their_ids_in_every_turn",
            "tests/http/test_producer_ids.py::test_commands_of_an_old_ledger_have_their_ids_in_every_turn",
            "tests/formats/test_shell.py::test_ids_have_round_and_position",
            "tests/formats/test_shell.py::test_command_numbers_restart_after_a_mark_or_a_start",
            "tests/formats/test_shell.py::test_an_id_reused_in_the_next_turn_is_another_call",
        ),
    ),
    R(
        "S0.4",
        "Call, start and result are sent with the command id, the call before the model's answer has ended.",
        (
            "tests/formats/test_shell.py::test_a_command_is_proposed_at_its_closing_tag",
            "tests/formats/test_shell.py::test_events_move_a_call_from_queued_to_running_to_completed",
            "tests/formats/test_shell.py::test_an_event_with_an_unknown_id_is_a_separate_call",
            "tests/agent/test_agent.py::test_a_command_is_proposed_before_the_answer_ends",
            "tests/laws/test_stream_laws.py::test_stream_and_history_agree_after_every_event",
            "tests/formats/test_shell_out.py::test_events_of_a_call_are_in_order_and_done_is_sent_once",
            "tests/web/test_live.py::test_identical_commands_are_distinguished_by_id",
            "tests/web/test_session_views.py::test_unknown_and_late_events_change_no_command",
        ),
    ),
    R(
        "S0.5",
        "The agent loop runs commands in order, returns results to the model and ends with a single done event.",
        (
            "tests/agent/test_agent.py::test_commands_in_tags_run_in_order",
            "tests/agent/test_agent.py::test_the_iteration_limit_ends_a_turn",
        ),
    ),
    R(
        "S0.6",
        "The model reads each result as a terminal block that states what was truncated, identical on every read.",
        (
            "tests/formats/test_shell.py::test_a_result_is_formatted_as_one_terminal_block",
            "tests/formats/test_shell.py::test_truncated_output_has_the_number_of_cut_characters",
            "tests/agent/test_agent.py::test_the_messages_for_the_model_are_the_same_after_a_reload",
        ),
    ),
    R(
        "S0.7",
        "A command that runs too long or prints too much is killed with all its descendants.",
        (
            "tests/agent/test_shell.py::test_no_process_outlives_the_shell",
            "tests/agent/test_shell.py::test_no_process_outlives_a_timeout",
            "tests/agent/test_shell.py::test_a_hundred_hostile_commands_leave_no_process",
            "tests/agent/test_shell.py::test_no_process_outlives_a_killed_host",
            "tests/agent/test_shell.py::test_memory_stays_within_a_few_times_the_cap",
        ),
    ),
    R(
        "S0.8",
        "Stored history in this format is a list of text and tool parts.",
        (
            "tests/formats/test_shell_out.py::test_decoding_stored_messages_gives_the_same_session",
            "tests/formats/test_shell_out.py::test_a_history_page_is_made_from_its_turns_alone",
            "tests/laws/test_stream_laws.py::test_stream_and_history_agree_after_every_event",
        ),
    ),
    R(
        "S0.9",
        "Finding commands, formatting results and truncating output are public functions of the package.",
        (
            "tests/http/test_producer_ids.py::test_the_functions_of_the_shell_format_are_importable",
            "tests/formats/test_shell.py::test_the_text_between_the_tags_is_the_command",
            "tests/formats/test_shell.py::test_ids_have_round_and_position",
            "tests/formats/test_shell.py::test_a_result_is_formatted_as_one_terminal_block",
            "tests/formats/test_shell.py::test_truncated_output_has_the_number_of_cut_characters",
        ),
    ),
    R(
        "S0.10",
        "A session whose producer sends no turns streams live in every format what its history shows.",
        ("tests/http/test_turnless_streams.py::test_a_session_without_turns_is_streamed_live",),
    ),
)

ACT_OBSERVE = (
    R(
        "S1.1",
        "An act and its observe have the same execution id, read in either spelling and written in both.",
        (
            "tests/http/test_producer_ids.py::test_a_call_without_an_id_of_its_producer_has_its_own",
            "tests/formats/test_act_observe.py::test_old_and_new_field_names_are_read",
            "tests/agent/test_agent.py::test_every_end_of_a_call_is_observed",
            "tests/laws/test_stream_laws.py::test_stream_and_history_agree_after_every_event",
        ),
    ),
    R(
        "S1.2",
        "Every end of an execution gives one observe with its id, its duration and its error, which is encoded once.",
        (
            "tests/http/test_producer_ids.py::test_an_error_is_encoded_once",
            "tests/http/test_producer_ids.py::test_the_error_of_a_python_function_is_encoded_once",
            "tests/agent/test_agent.py::test_every_end_of_a_call_is_observed",
            "tests/formats/test_act_observe.py::test_every_kind_of_observe_ends_the_call",
            "tests/formats/test_act_observe_out.py::test_every_end_state_gives_an_observe",
            "tests/formats/test_act_observe_out.py::test_every_execution_is_observed_once",
        ),
    ),
    R(
        "S1.3",
        "Acts and observes are paired by id; without ids they are paired by name, in order, within a turn.",
        (
            "tests/formats/test_act_observe.py::test_acts_and_observes_pair_by_id_in_any_order",
            "tests/formats/test_act_observe.py::test_events_without_ids_pair_by_tool_name_in_order",
            "tests/formats/test_act_observe.py::test_a_repeated_act_is_one_call",
            "tests/formats/test_act_observe.py::test_an_observe_without_an_act_is_a_separate_call",
        ),
    ),
    R(
        "S1.4",
        "Producers without ids and readers without the new fields continue to work.",
        (
            "tests/formats/test_act_observe.py::test_unknown_fields_do_not_change_the_call_and_are_stored",
            "tests/formats/test_act_observe.py::test_old_and_new_producers_are_paired_by_the_models_id",
        ),
    ),
    R(
        "S1.5",
        "Any result can be stored, even one that JSON cannot represent.",
        (
            "tests/model/test_codec.py::TestToJson::test_any_value_becomes_json",
            "tests/api/test_python_api.py::test_any_arguments_and_results_are_shown_safely",
        ),
    ),
    R(
        "S1.6",
        "The timeline shows acts, observes and user messages; a tool is unnamed only if no event names it.",
        (
            "tests/agent/test_agent.py::test_every_end_of_a_call_is_observed",
            "tests/formats/test_act_observe.py::test_timeline_items_are_read",
            "tests/formats/test_act_observe.py::test_the_tool_name_unknown_is_ignored",
            "tests/laws/test_stream_laws.py::test_stream_and_history_agree_after_every_event",
            "tests/formats/test_act_observe_out.py::test_a_tool_is_unknown_only_without_a_name",
        ),
    ),
    R(
        "S1.7",
        "After an upgrade, older versions still open the file, down to the oldest version that the file names.",
        (
            "tests/faults/test_faults.py::test_a_compatible_newer_ledger_is_opened",
            "tests/faults/test_faults.py::test_an_unsupported_newer_ledger_is_rejected_and_unchanged",
            "tests/faults/test_faults.py::test_migrations_bring_an_older_ledger_up_to_date",
            "tests/store/test_store.py::test_the_first_version_can_read_and_write_a_migrated_file",
        ),
    ),
    R(
        "S1.8",
        "The docs give the order in which to upgrade servers and readers, and how to check it.",
        (
            "tests/docs/test_docs.py::test_all_code_in_a_guide_is_run",
            "tests/docs/test_docs.py::test_examples_print_what_the_docs_say",
        ),
    ),
    R(
        "S1.9",
        "Execution ids, model ids and durations return as the producer gave them; its events need no type.",
        (
            "tests/http/test_producer_ids.py::test_the_ids_of_a_runtime_return_unchanged_when_the_model_repeats_its_ids",
            "tests/http/test_producer_ids.py::test_an_execution_id_that_arrives_before_the_start_counts",
            "tests/http/test_producer_ids.py::test_dataclass_events_without_a_type_are_understood",
            "tests/http/test_producer_ids.py::test_other_messages_without_a_type_are_kept_as_raw",
        ),
    ),
    R(
        "OLD1",
        "A ledger written by 0.1 opens, verifies and exports the same, and can be continued.",
        (
            "tests/ledger/test_ledger_fixture.py::test_an_old_ledger_exports_the_same",
            "tests/ledger/test_ledger_fixture.py::test_an_old_ledger_verifies_and_lists_the_same",
            "tests/ledger/test_ledger_fixture.py::test_an_old_ledger_answers_the_same",
            "tests/ledger/test_ledger_fixture.py::test_opening_an_old_ledger_ends_no_call",
            "tests/ledger/test_ledger_fixture.py::test_a_pending_approval_of_an_old_ledger_is_answered",
            "tests/ledger/test_ledger_fixture.py::test_a_leased_command_of_an_old_ledger_is_completed_with_its_fence",
            "tests/ledger/test_ledger_fixture.py::test_held_text_of_an_old_ledger_is_redacted_with_its_end",
            "tests/ledger/test_ledger_fixture.py::test_an_old_session_continues_after_retention_and_a_checkpoint",
            "tests/ledger/test_ledger_fixture.py::test_pages_of_an_old_session_have_every_entry_once",
            "tests/ledger/test_ledger_fixture.py::test_idempotency_keys_of_an_old_ledger_count",
        ),
    ),
)

ENTRIES = (
    R(
        "S2.1",
        "A session is shown as entries of seven types.",
        ("tests/rules/test_fold.py::test_the_rules_create_exactly_the_seven_entry_types",),
    ),
    R(
        "S2.2",
        "The twelve entry rules are implemented only in the fold; all other code applies its patches.",
        (
            "tests/docs/test_entry_rules.py::test_every_event_that_changes_entries_has_its_rule_in_the_fold",
            "tests/laws/test_laws.py::test_every_prefix_gives_the_same_state_in_all_four_folds",
            "tests/web/test_live.py::test_reload_at_any_time_shows_the_same",
        ),
    ),
    R(
        "S2.3",
        "A chunk extends the last entry if kind and message are the same, and starts a new entry otherwise.",
        (
            "tests/rules/test_fold.py::test_a_chunk_extends_the_last_entry_or_creates_an_entry",
            "tests/rules/test_fold.py::test_thoughts_and_messages_do_not_extend_each_other",
            "tests/rules/test_fold.py::test_chunks_with_different_message_ids_are_different_texts",
        ),
    ),
    R(
        "S2.4",
        "Whether a source sends deltas or cumulative text is declared or detected, and the text is correct either way.",
        (
            "tests/rules/test_streamed_text.py::test_an_undeclared_text_is_deltas_unless_proven_cumulative",
            "tests/rules/test_chunk_proofs.py::test_a_chunk_with_the_whole_text_proves_a_cumulative_source",
            "tests/rules/test_streamed_text.py::test_three_growths_to_24_characters_prove_a_cumulative_source",
            "tests/rules/test_streamed_text.py::test_a_proven_policy_holds_for_its_source_and_kind",
            "tests/rules/test_streamed_text.py::test_dedupe_drops_suffixes_and_replaces_extensions",
            "tests/laws/test_laws.py::test_delta_text_is_the_same_for_any_chunking",
            "tests/formats/test_text_streams.py::test_random_deltas_give_the_text_unchanged",
            "tests/formats/test_text_streams.py::test_cumulative_chunks_give_the_text_unchanged",
        ),
    ),
    R(
        "S2.5",
        "Tools are shown with their short name from any field, and the original name is stored.",
        (
            "tests/formats/test_acp_entries.py::test_a_tool_name_is_cleaned_from_every_field",
            "tests/rules/test_lifecycle.py::test_server_prefixes_are_removed_from_tool_names",
            "tests/rules/test_fold.py::test_tool_names_lose_their_server_prefix_and_keep_the_raw_name",
        ),
    ),
    R(
        "S2.6",
        "A call that is announced twice, or updated before it is announced, is one call.",
        (
            "tests/formats/test_acp.py::test_a_repeated_tool_call_message_updates_the_same_call",
            "tests/rules/test_fold.py::test_the_first_event_about_a_call_creates_its_entry",
            "tests/formats/test_acp.py::test_a_permission_request_updates_its_call_and_keeps_options",
        ),
    ),
    R(
        "S2.7",
        "A permission request survives a restart and accepts one answer; a second answer fails with the first one.",
        (
            "tests/api/test_python_api.py::test_requests_and_answers_survive_a_restart",
            "tests/api/test_python_api.py::test_one_of_many_answers_wins",
            "tests/api/test_approvals.py::test_arguments_that_change_during_the_approval_never_run",
            "tests/http/test_http.py::test_a_second_approval_decision_is_a_conflict",
            "tests/web/test_live.py::test_decision_in_one_tab_is_shown_in_the_others",
        ),
    ),
    R(
        "S2.8",
        "Output and content of any size are stored in full, with a preview and the size in the entry.",
        (
            "tests/formats/test_acp_entries.py::test_large_content_is_stored_outside_the_log",
            "tests/formats/test_large_content.py::test_an_output_does_not_replace_large_content",
            "tests/rules/test_redaction_stream.py::test_large_output_is_stored_as_a_blob",
            "tests/rules/test_redaction_stream.py::test_large_json_is_stored_as_a_blob",
            "tests/rules/test_redaction_stream.py::test_retention_keeps_the_blob_of_an_open_call",
        ),
    ),
    R(
        "S2.9",
        "An entry's id is the sequence number of the event that created it, also after a reload.",
        (
            "tests/rules/test_fold.py::test_the_first_event_about_a_call_creates_its_entry",
            "tests/laws/test_laws.py::test_the_store_with_any_checkpoints_equals_the_fold_of_its_log",
        ),
    ),
    R(
        "S2.10",
        "Capabilities always create an entry, commands never, a mode only if it differs from the previous one.",
        (
            "tests/rules/test_fold.py::test_each_capabilities_event_creates_a_meta_entry",
            "tests/rules/test_fold.py::test_a_mode_change_creates_an_entry",
            "tests/rules/test_fold.py::test_commands_change_the_session_and_create_no_entry",
        ),
    ),
    R(
        "S2.11",
        "The history that an agent replays when it loads a session does not change what was recorded live. Turns that "
        "were never seen live enter whole and in their place, or not at all.",
        (
            "tests/formats/test_acp.py::test_a_replay_does_not_change_recorded_entries",
            "tests/formats/test_acp.py::test_a_replay_adds_nothing_to_a_recorded_turn",
            "tests/formats/test_acp_replayed_turns.py::test_turns_of_an_agent_used_without_wrap_enter_whole",
            "tests/formats/test_acp_replayed_turns.py::test_a_turn_before_the_end_of_the_log_does_not_enter",
            "tests/formats/test_acp_captures.py::test_a_replay_does_not_change_ended_calls_of_a_capture",
            "tests/rules/test_replay_diff.py::test_differences_in_replays_of_captures_are_found",
        ),
    ),
    R(
        "S2.12",
        "A text is streaming until another event creates an entry or its message, turn or source ends.",
        (
            "tests/rules/test_fold.py::test_a_new_entry_or_the_end_of_the_turn_ends_a_text",
            "tests/rules/test_fold.py::test_events_that_make_no_entry_do_not_split_a_text",
        ),
    ),
    R(
        "S2.13",
        "An answered permission request shows the option and the time, is sent to the agent and is no longer pending.",
        (
            "tests/formats/test_acp_captures.py::test_an_answered_request_has_its_option_and_time",
            "tests/formats/test_acp.py::test_an_answer_is_recorded_on_its_request",
            "tests/wrap/test_wrap.py::test_a_policy_answers_instead_of_the_client",
            "tests/wrap/test_approvals.py::test_an_answer_from_another_terminal_goes_to_the_agent",
            "tests/web/test_answers.py::test_requests_are_answered_with_the_agents_options",
        ),
    ),
    R(
        "S2.14",
        "The prompt box completes the commands that the agent offers.",
        ("tests/web/test_demo.py::test_prompts_are_answered",),
    ),
    R(
        "S2.15",
        "The twelve entry rules are documented, and code and document have the same rules.",
        (
            "tests/docs/test_entry_rules.py::test_every_rule_is_documented_and_cited_in_code",
            "tests/docs/test_entry_rules.py::test_a_rule_that_code_cites_exists",
        ),
    ),
)

COMMANDS = (
    R(
        "S3.1",
        "Submitting a command returns its correlation id without waiting for the result.",
        (
            "tests/commands/test_commands.py::test_submit_returns_at_once_without_a_worker",
            "tests/commands/test_commands.py::test_the_same_correlation_id_is_the_same_command",
            "tests/commands/test_commands.py::test_a_correlation_id_with_other_arguments_is_a_conflict",
            "tests/http/test_commands.py::test_a_command_is_submitted_claimed_and_completed",
            "tests/http/test_commands.py::test_a_repeated_submission_creates_no_second_command",
            "tests/cli/test_commands.py::test_submit_prints_only_the_id",
            "tests/mcp/test_polling_agent.py::test_the_dialogue_of_an_agent_that_polls",
        ),
    ),
    R(
        "S3.2",
        "A poll returns the status of a command and whether it is final, also for an unknown id.",
        (
            "tests/commands/test_commands.py::test_a_poll_returns_the_outcome_of_an_ended_command",
            "tests/commands/test_commands.py::test_a_poll_returns_pending_for_an_open_command",
            "tests/commands/test_commands.py::test_an_unknown_id_is_not_found_without_waiting",
            "tests/commands/test_commands.py::test_a_result_of_any_type_and_size_is_returned_unchanged",
            "tests/http/test_commands.py::test_an_unknown_command_is_a_final_404",
            "tests/http/test_commands.py::test_the_default_format_of_a_command_is_its_call_entry",
            "tests/mcp/test_mcp.py::test_an_unknown_command_has_the_final_status_not_found",
            "tests/mcp/test_polling_agent.py::test_the_dialogue_of_an_agent_that_polls",
        ),
    ),
    R(
        "S3.3",
        "A poll that waits returns when the command ends; a poll without waiting returns immediately.",
        (
            "tests/commands/test_commands.py::test_a_waiting_poll_returns_at_every_kind_of_end",
            "tests/commands/test_commands.py::test_a_waiting_poll_returns_pending_after_its_timeout",
            "tests/commands/test_commands.py::test_a_waiting_poll_returns_when_another_process_ends_the_command",
            "tests/commands/test_commands.py::test_an_idle_process_notices_the_end_of_a_command_that_it_did_not_know",
            "tests/commands/test_commands.py::test_a_waiting_poll_raises_not_found_when_the_session_is_deleted",
            "tests/http/test_commands.py::test_a_waiting_poll_returns_when_the_command_ends",
            "tests/http/test_commands.py::test_a_waiting_submission_gets_the_result_of_another_process",
            "tests/http/test_commands.py::test_a_submission_can_wait_for_the_result",
            "tests/laws/test_command_laws.py::TestMachine::runTest",
        ),
    ),
    R(
        "S3.4",
        "A queued command expires after its timeout, counted from its approval, and never after it has ended.",
        (
            "tests/commands/test_commands.py::test_an_unclaimed_command_expires_after_its_timeout",
            "tests/commands/test_commands.py::test_a_command_that_runs_too_long_times_out",
            "tests/commands/test_commands.py::test_a_command_expires_after_thirty_seconds_by_default",
            "tests/commands/test_commands.py::test_the_timeout_starts_after_approval",
            "tests/commands/test_commands.py::test_a_completed_command_does_not_expire",
            "tests/commands/test_commands.py::test_a_clock_jump_does_not_expire_a_command_early",
            "tests/laws/test_command_laws.py::test_each_command_ends_once_when_processes_are_killed",
        ),
    ),
    R(
        "S3.5",
        "The lists of commands are limited to the most recent ones; any id can be looked up as long as the log has it.",
        (
            "tests/commands/test_commands.py::test_commands_are_listed_as_pending_and_recently_ended",
            "tests/commands/test_commands.py::test_the_last_hundred_failures_are_listed",
            "tests/commands/test_commands.py::test_every_end_except_completion_is_listed_as_failed",
            "tests/commands/test_commands.py::test_open_commands_survive_retention",
            "tests/http/test_commands.py::test_commands_are_listed_as_pending_and_recently_ended",
            "tests/cli/test_commands.py::test_ls_lists_pending_completed_and_failed_commands",
            "tests/web/test_answers.py::test_commands_move_from_group_to_group",
            "tests/mcp/test_polling_agent.py::test_the_dialogue_of_an_agent_that_polls",
        ),
    ),
    R(
        "S3.6",
        "An executor polls or claims commands; a stale claim cannot overwrite the result.",
        (
            "tests/commands/test_commands.py::test_polling_the_queue_does_not_claim_commands",
            "tests/commands/test_commands.py::test_an_unclaimed_command_can_be_completed_without_a_fence",
            "tests/commands/test_commands.py::test_a_claimed_command_cannot_be_completed_without_its_fence",
            "tests/commands/test_commands.py::test_a_command_awaiting_approval_cannot_be_claimed_or_completed",
            "tests/commands/test_commands.py::test_commands_are_claimed_first_in_first_out",
            "tests/commands/test_commands.py::test_a_heartbeat_renews_the_lease",
            "tests/commands/test_commands.py::test_an_expired_lease_requeues_only_idempotent_commands",
            "tests/commands/test_commands.py::test_a_late_result_is_refused_and_only_logged",
            "tests/http/test_commands.py::test_a_result_with_a_stale_fence_is_refused_and_logged",
            "tests/http/test_commands.py::test_polling_pending_queries_does_not_claim_commands",
            "tests/http/test_commands.py::test_a_disconnected_worker_gets_no_command",
            "tests/worker/test_worker.py::test_only_idempotent_commands_of_a_killed_worker_run_again",
            "tests/worker/test_worker.py::test_two_workers_never_run_the_same_command",
            "tests/laws/test_command_laws.py::TestMachine::runTest",
            "tests/laws/test_command_laws.py::test_each_command_ends_once_when_processes_are_killed",
        ),
    ),
    R(
        "S3.7",
        "A full queue rejects new commands, or drops the oldest if configured.",
        (
            "tests/commands/test_commands.py::test_a_full_queue_refuses_the_new_command",
            "tests/commands/test_commands.py::test_a_queue_holds_a_hundred_commands_by_default",
            "tests/commands/test_commands.py::test_a_full_queue_can_expire_its_oldest_command",
            "tests/http/test_commands.py::test_a_submission_to_a_full_queue_is_refused",
            "tests/mcp/test_mcp.py::test_a_full_queue_is_reported_to_the_model",
            "tests/cli/test_commands.py::test_a_submission_to_a_full_queue_is_refused",
            "tests/cli/test_serve_options.py::test_serve_options_change_what_happens_to_commands",
        ),
    ),
    R(
        "S3.8",
        "Tracking commands needs little memory and time and never blocks the recording of events.",
        (
            "tests/commands/test_commands.py::test_polling_starts_no_write_transaction",
            "tests/commands/test_commands.py::test_waiting_workers_query_the_queue_only_a_few_times",
            "tests/commands/test_deadlines.py::test_checking_for_due_commands_takes_constant_time",
            "tests/commands/test_deadlines.py::test_adding_or_ending_a_command_takes_constant_time",
            "tests/commands/test_deadlines.py::test_an_idle_tracker_is_small_and_a_command_costs_about_200_bytes",
            "tests/commands/test_deadlines.py::test_ended_commands_leave_no_growing_set_of_buckets",
            "tests/commands/test_deadlines.py::test_the_tracker_agrees_with_a_naive_list",
        ),
    ),
    R(
        "S3.9",
        "Agents submit and observe commands over MCP, with two tools and as tasks.",
        (
            "tests/mcp/test_mcp.py::test_a_command_is_submitted_polled_for_and_its_result_read",
            "tests/mcp/test_mcp.py::test_all_commands_are_listed_and_the_failed_ones_looked_at",
            "tests/mcp/test_mcp.py::test_no_tool_approves",
            "tests/mcp/test_tasks.py::test_a_command_is_a_task_for_a_client_that_knows_tasks",
            "tests/mcp/test_tasks.py::test_tasks_are_answered_after_a_kill",
            "tests/mcp/test_conformance.py::test_the_core_suite_passes",
            "tests/mcp/test_conformance.py::test_the_tasks_suite_passes",
            "tests/mcp/test_polling_agent.py::test_the_dialogue_of_an_agent_that_polls",
        ),
    ),
    R(
        "S3.10",
        "Every operation on commands is available in Python.",
        (
            "tests/commands/test_commands.py::test_a_poll_returns_the_outcome_of_an_ended_command",
            "tests/commands/test_commands.py::test_pending_commands_are_listed_oldest_first",
            "tests/worker/test_worker.py::test_a_function_of_any_kind_runs_a_command",
        ),
    ),
    R(
        "S3.11",
        "A pending command reports its queue position and when an executor last polled.",
        (
            "tests/commands/test_commands.py::test_a_pending_command_has_its_position_and_executor_time",
            "tests/commands/test_commands.py::test_polling_executors_are_seen_by_other_processes",
            "tests/cli/test_commands.py::test_doctor_names_the_likely_cause",
            "tests/cli/test_commands.py::test_doctor_reports_a_queue_without_workers",
            "tests/cli/test_commands.py::test_doctor_reports_nothing_for_healthy_commands",
        ),
    ),
    R(
        "S3.12",
        "A browser extension can be an executor once its origin is allowed.",
        (
            "tests/http/test_commands.py::test_a_browser_extension_with_an_allowed_origin_can_run_commands",
            "tests/http/test_browser_guard.py::test_an_allowed_origin_gets_cors_headers",
            "tests/http/test_browser_guard.py::test_a_preflight_of_an_allowed_origin_is_answered",
        ),
    ),
    R(
        "S3.13",
        "A command that waits for approval is approved, edited or denied in the page of the commands.",
        ("tests/web/test_answers.py::test_a_command_is_approved_or_denied_in_the_table",),
    ),
)

HISTORY = (
    R(
        "S4.1",
        "Stored rows become chat messages, each call with its result, newest message first.",
        (
            "tests/formats/test_ai_sdk_v4_rows.py::test_messages_have_every_text_call_and_result_once",
            "tests/formats/test_ai_sdk_v4_rows.py::test_rows_in_any_order_give_the_same_messages",
            "tests/formats/test_ai_sdk_v4_rows.py::test_every_spelling_of_a_result_is_read",
            "tests/formats/test_ai_sdk_v4.py::test_messages_are_newest_first_with_one_message_per_turn",
        ),
    ),
    R(
        "S4.2",
        "Reasoning comes before text, and calls and messages state whether they are complete.",
        (
            "tests/formats/test_ai_sdk_v4_rows.py::test_reasoning_precedes_text_and_each_part_has_an_annotation",
            "tests/formats/test_ai_sdk_v4.py::test_a_message_is_complete_when_its_turn_has_ended",
            "tests/formats/test_ai_sdk_v4.py::test_every_call_outside_of_turns_has_an_annotation",
            "tests/http/test_rows_wire.py::test_a_posted_chat_gives_its_literal_history",
        ),
    ),
    R(
        "S4.3",
        "The validation state of a call is one of four, from its row and the requirement of its tool.",
        (
            "tests/formats/test_ai_sdk_v4_rows.py::test_a_call_has_the_decision_of_the_user",
            "tests/formats/test_ai_sdk_v4.py::test_validated_is_the_decision_of_the_user",
            "tests/http/test_rows_wire.py::test_a_chat_gives_its_literal_messages",
            "tests/cli/test_rows_options.py::test_a_server_knows_the_tools_that_require_a_user",
        ),
    ),
    R(
        "S4.4",
        "Calls that belong to no message appear in a placeholder with a stable id and a derived time.",
        (
            "tests/formats/test_ai_sdk_v4_rows.py::test_calls_without_a_result_get_a_placeholder",
            "tests/formats/test_ai_sdk_v4_rows.py::test_the_id_of_a_placeholder_is_stable",
        ),
    ),
    R(
        "S4.5",
        "Pages of any size contain each message once, with every result next to its call.",
        (
            "tests/ledger/test_queries.py::test_pages_of_any_size_give_the_full_history",
            "tests/ledger/test_queries.py::test_a_history_is_made_block_by_block",
            "tests/ledger/test_queries.py::test_a_cursor_stays_valid_while_the_session_grows",
            "tests/ledger/test_queries.py::test_the_cost_of_a_page_does_not_grow_with_the_session",
        ),
    ),
    R(
        "S4.6",
        "A person can approve a call, deny it with a reason for the model, or edit its arguments, once.",
        (
            "tests/api/test_approvals.py::test_arguments_that_do_not_match_the_schema_change_nothing",
            "tests/http/test_http.py::test_an_approved_tool_runs_with_the_edited_arguments",
            "tests/http/test_http.py::test_an_invalid_approval_decision_leaves_the_request_pending",
            "tests/http/test_http.py::test_an_approval_of_another_session_is_not_found",
            "tests/http/test_http.py::test_only_the_first_of_concurrent_approval_decisions_is_applied",
            "tests/web/test_answers.py::test_edited_parameters_must_match_the_schema",
        ),
    ),
    R(
        "S4.7",
        "A reloaded page shows the same as the live page, in every state of a call.",
        (
            "tests/http/test_stream_clients.py::test_a_stream_replayed_after_any_event_equals_the_history",
            "tests/http/test_stream_clients.py::test_a_stream_followed_from_the_start_equals_the_history",
            "tests/laws/test_stream_laws.py::test_stream_and_history_agree_after_every_event",
            "tests/web/test_live.py::test_reload_at_any_time_shows_the_same",
            "tests/web/test_live.py::test_tabs_show_the_same",
            "tests/http/test_rows_wire.py::test_a_client_sees_a_chat_live_as_after_a_reload",
        ),
    ),
    R(
        "S4.8",
        "Text, call and closing text of one exchange become one assistant message.",
        (
            "tests/formats/test_ai_sdk_v4_rows.py::test_text_call_and_text_are_one_assistant_message",
            "tests/formats/test_ai_sdk_v4.py::test_rows_imported_into_a_ledger_give_the_same_messages",
            "tests/http/test_rows_wire.py::test_a_chat_gives_its_literal_messages",
        ),
    ),
    R(
        "S4.9",
        "The conversion of rows to messages is a public function without side effects, for dicts, ORM objects, "
        "dataclasses and pydantic models; another value raises and names its row.",
        (
            "tests/formats/test_ai_sdk_v4_rows.py::test_rows_in_any_order_give_the_same_messages",
            "tests/formats/test_ai_sdk_v4_rows.py::test_any_input_gives_messages",
            "tests/formats/test_row_objects.py::test_objects_of_an_orm_are_rows",
            "tests/formats/test_row_objects.py::test_objects_with_attributes_are_rows",
            "tests/formats/test_row_objects.py::test_an_object_that_is_not_a_row_is_refused_with_its_index",
            "tests/formats/test_ai_sdk_v4_rows.py::test_a_value_that_is_not_a_row_is_refused_with_its_index",
        ),
    ),
    R(
        "S4.10",
        "The demo answers its sample questions; a browser shows each call running and ended, also after a reload.",
        (
            "tests/demo/test_demo.py::test_page_answers_prompts",
            "tests/web/test_demo.py::test_prompts_are_answered",
            "tests/web/test_live.py::test_reload_at_any_time_shows_the_same",
        ),
    ),
)

PYTHON_API = (
    R(
        "API1",
        "Every operation gives the same result on a local ledger, through callslip.sync and through callslip.connect.",
        (
            "tests/api/test_operations.py::test_a_call_is_recorded_from_start_to_end",
            "tests/api/test_operations.py::test_sessions_calls_and_approvals_are_found_by_ids_and_prefixes",
            "tests/api/test_operations.py::test_an_approved_call_runs",
            "tests/api/test_operations.py::test_a_denied_call_does_not_run",
            "tests/api/test_operations.py::test_a_call_is_cancelled_once",
            "tests/api/test_operations.py::test_waiting_ends_with_the_call_or_with_the_timeout",
            "tests/api/test_operations.py::test_followers_receive_every_event_once",
            "tests/api/test_operations.py::test_exports_are_the_same_for_every_ledger",
            "tests/api/test_operations.py::test_commands_are_submitted_claimed_and_completed",
        ),
    ),
    R(
        "API2",
        "Public signatures use exported types only, and dir(callslip) lists the public names.",
        (
            "tests/api/test_public_names.py::test_public_signatures_use_public_types",
            "tests/api/test_public_names.py::test_every_exception_is_exported_and_its_name_ends_in_error",
            "tests/api/test_public_names.py::test_dir_lists_the_public_names",
        ),
    ),
    R(
        "API3",
        "Connecting does no I/O, and a write whose response was lost counts once.",
        (
            "tests/client/test_remote_ledger.py::test_connecting_does_no_io",
            "tests/client/test_remote_ledger.py::test_an_append_whose_answer_was_lost_is_written_once",
            "tests/client/test_remote_ledger.py::test_an_answer_whose_confirmation_was_lost_counts",
            "tests/client/test_remote_ledger.py::test_a_command_whose_confirmation_was_lost_is_queued_once",
        ),
    ),
    R(
        "API4",
        "A remote call lives as long as its client renews its lease, and ends when the client is gone.",
        (
            "tests/client/test_remote_ledger.py::test_a_call_outlives_its_lease",
            "tests/client/test_remote_ledger.py::test_a_call_of_a_disconnected_client_ends",
        ),
    ),
    R(
        "API5",
        "Remote answers carry the name of the token; another name is refused.",
        ("tests/client/test_remote_ledger.py::test_the_token_names_the_author_of_an_answer",),
    ),
    R(
        "API6",
        "Leaving the block of a call or a turn ends it; a tool outside a session raises NoSessionError.",
        (
            "tests/api/test_operations.py::test_an_exception_fails_the_call",
            "tests/api/test_operations.py::test_a_turn_is_ended_by_its_block",
            "tests/api/test_python_api.py::test_cancelling_at_any_moment_leaves_no_call_open",
            "tests/api/test_python_api.py::test_a_tool_needs_a_session",
        ),
    ),
    R(
        "API7",
        "A misspelt keyword argument is refused instead of ignored.",
        ("tests/api/test_operations.py::test_a_misspelt_option_is_refused",),
    ),
    R(
        "API8",
        "HTTP, MCP, CLI and worker use operations: they touch no store and build no lifecycle events.",
        (
            "tests/docs/test_edges.py::test_edges_call_operations",
            "tests/docs/test_edges.py::test_a_violation_is_found",
        ),
    ),
    R(
        "API9",
        "Imports between packages point downward, and the documented walks follow the code.",
        (
            "tests/docs/test_layout.py::test_imports_point_one_way",
            "tests/docs/test_layout.py::test_a_wrong_import_is_found",
            "tests/docs/test_walks.py::test_each_step_of_a_walk_leads_to_the_next",
        ),
    ),
    R(
        "API10",
        "A ledger written by version 0.1 opens, verifies, continues and exports the same.",
        (
            "tests/ledger/test_ledger_fixture.py::test_an_old_ledger_exports_the_same",
            "tests/ledger/test_ledger_fixture.py::test_an_old_ledger_verifies_and_lists_the_same",
            "tests/ledger/test_ledger_fixture.py::test_an_old_ledger_answers_the_same",
            "tests/ledger/test_ledger_fixture.py::test_an_old_session_continues_after_retention_and_a_checkpoint",
        ),
    ),
    R(
        "API11",
        "Code, docs and texts avoid the words on the project's list.",
        (
            "tests/docs/test_language.py::test_no_avoided_word_or_name_is_used",
            "tests/docs/test_language.py::test_avoided_words_and_names_are_found",
        ),
    ),
    R(
        "API12",
        "CI repeats failed tests one at a time and names those that pass then as flaky.",
        (
            "tests/docs/test_ci.py::test_a_test_that_passes_alone_is_named_as_flaky",
            "tests/docs/test_ci.py::test_a_test_that_fails_twice_fails_the_run",
        ),
    ),
)

ANSWERS = (
    R(
        "ANS1",
        "A posted message answers a request for approval only with the right to approve, and in the caller's name.",
        (
            "tests/http/test_posted_answers.py::test_a_posted_answer_without_the_right_to_approve_is_refused",
            "tests/http/test_posted_answers.py::test_a_posted_answer_is_recorded_under_the_name_of_the_caller",
        ),
    ),
    R(
        "ANS2",
        "A posted answer follows the rules of `approve`: its option, edited arguments, and unchanged arguments.",
        (
            "tests/http/test_posted_answers.py::test_a_posted_answer_follows_the_rules_of_approve",
            "tests/http/test_posted_answers.py::test_a_posted_answer_does_not_approve_changed_arguments",
        ),
    ),
    R(
        "ANS3",
        "A foreign agent reports the answers of its own user, only to its own requests.",
        (
            "tests/http/test_posted_answers.py::test_an_agent_reports_the_answer_of_its_own_user",
            "tests/http/test_posted_answers.py::test_an_agent_cannot_report_the_answer_to_a_request_of_another",
            "tests/http/test_posted_answers.py::test_a_posted_request_cannot_name_another_caller",
        ),
    ),
    R(
        "ANS4",
        "A local import without a caller keeps the recorded `by`.",
        ("tests/http/test_posted_answers.py::test_a_local_import_keeps_the_recorded_name",),
    ),
    R(
        "ANS5",
        "The title of a call with edited arguments names the edited arguments, in every view.",
        (
            "tests/rules/test_edited_title.py::test_a_title_names_the_edited_values",
            "tests/rules/test_edited_title.py::test_every_view_shows_the_edited_title",
        ),
    ),
    R(
        "ANS7",
        "Posted events change neither the action nor the parameters of a command, nor the call that its id names.",
        (
            "tests/http/test_posted_answers.py::test_posted_events_do_not_change_what_a_worker_runs",
            "tests/http/test_posted_answers.py::test_a_posted_alias_does_not_take_over_a_command",
        ),
    ),
    R(
        "ANS6",
        "Wrapped agents and commands get no token, and clients that they start do not use the token file.",
        (
            "tests/agent/test_agent_env.py::test_a_command_has_no_token",
            "tests/agent/test_agent_env.py::test_a_wrapped_agent_has_no_token",
            "tests/agent/test_agent_env.py::test_an_agent_does_not_use_the_token_file",
        ),
    ),
    R(
        "ANS8",
        "A request whose answer would not reach its agent says where to answer it, and no interface answers it here.",
        (
            "tests/http/test_answer_places.py::test_a_posted_request_of_an_external_agent_says_where_to_answer",
            "tests/http/test_answer_places.py::test_every_format_with_requests_names_its_client",
            "tests/http/test_answer_places.py::test_no_interface_answers_a_request_of_an_external_agent",
            "tests/http/test_answer_places.py::test_the_newest_request_is_the_newest_that_can_be_answered_here",
            "tests/http/test_answer_places.py::test_a_recorded_stream_says_where_to_answer",
            "tests/cli/test_answer_places.py::test_an_answer_that_would_not_reach_the_agent_is_refused",
            "tests/wrap/test_answer_places.py::test_a_request_that_the_client_answers_cannot_be_answered_here",
            "tests/wrap/test_answer_places.py::test_a_released_request_cannot_be_answered_here_any_more",
        ),
    ),
    R(
        "ANS9",
        "The answer that a person gives in the place of such a request counts when its source reports it.",
        (
            "tests/http/test_answer_places.py::test_the_answer_in_the_place_of_the_request_counts",
            "tests/http/test_answer_places.py::test_the_refusal_in_a_row_counts",
            "tests/http/test_answer_places.py::test_without_tokens_the_real_answer_counts",
        ),
    ),
    R(
        "ANS10",
        "Every view shows such a request with its place, offers no answer, and does not count it as to approve.",
        (
            "tests/web/test_answer_places.py::test_a_request_that_must_be_answered_elsewhere_has_no_buttons",
            "tests/web/test_answer_places.py::test_a_session_says_where_its_request_must_be_answered",
            "tests/cli/test_answer_places.py::test_the_place_of_the_answer_is_shown",
            "tests/cli/test_answer_places.py::test_a_live_view_prints_no_command_that_cannot_answer",
            "tests/http/test_answer_places.py::test_an_agent_over_mcp_reads_where_to_answer",
            "tests/http/test_answer_places.py::test_no_format_offers_an_answer_that_would_be_refused",
            "tests/http/test_answer_places.py::test_a_chat_client_cannot_answer_for_another_client",
        ),
    ),
    R(
        "ANS11",
        "Requests whose program delivers answers can be answered here: native events, and where the program says so.",
        (
            "tests/http/test_answer_places.py::test_a_poster_that_delivers_answers_can_be_answered_here",
            "tests/http/test_answer_places.py::test_a_request_in_native_events_may_name_its_place",
            "tests/http/test_answer_places.py::test_an_old_request_can_be_answered_as_before",
        ),
    ),
)

POLICY = (
    R(
        "POL1",
        "A rule with wildcards allows a shell command only if it is one simple command that starts no other program.",
        (
            "tests/rules/test_command_corpus.py::test_no_way_around_a_rule_is_allowed",
            "tests/rules/test_shell_command.py::test_bash_sees_the_same_words",
            "tests/rules/test_shell_command.py::test_what_is_not_one_simple_command_has_a_problem",
            "tests/rules/test_policy_commands.py::test_no_way_around_a_rule_is_allowed",
            "tests/rules/test_policy_commands.py::test_words_are_compared_not_texts",
        ),
    ),
    R(
        "POL2",
        "Ordinary commands with quotes, wildcards for files and usual options are allowed by such a rule.",
        (
            "tests/rules/test_command_corpus.py::test_an_ordinary_command_is_allowed",
            "tests/rules/test_policy_commands.py::test_ordinary_commands_are_allowed",
        ),
    ),
    R(
        "POL3",
        "A rule without wildcards allows exactly its own text, which may be any command.",
        (
            "tests/rules/test_command_corpus.py::test_every_command_is_allowed_by_its_exact_text",
            "tests/rules/test_text_pattern.py::test_the_exact_text_of_a_pattern_is_known",
            "tests/rules/test_policy_commands.py::test_an_exact_text_allows_any_command",
        ),
    ),
    R(
        "POL4",
        "A command is found where agents send it: under any of its names, as a list, with arguments, or as the title.",
        (
            "tests/rules/test_call_commands.py::test_a_command_is_found",
            "tests/rules/test_call_commands.py::test_a_command_that_is_not_known_has_no_text",
            "tests/rules/test_call_commands.py::test_any_text_can_be_the_command_of_a_call_that_executes",
            "tests/rules/test_call_commands.py::test_commands_of_real_agents_are_found",
            "tests/rules/test_policy_commands.py::test_a_rule_about_another_text_allows_only_simple_commands",
            "tests/rules/test_policy_commands.py::test_a_title_allows_only_the_command_that_it_shows",
            "tests/rules/test_policy_commands.py::test_a_call_with_two_commands_is_left_to_the_client",
            "tests/rules/test_policy_commands.py::test_a_call_with_unknown_members_is_left_to_the_client",
            "tests/rules/test_policy_commands.py::test_a_call_without_a_known_command_is_left_to_the_client",
            "tests/rules/test_policy_commands.py::test_a_rule_about_paths_only_allows_no_command",
        ),
    ),
    R(
        "POL5",
        "If the text of a command matches a rule that allows, but the command is not simple, the client decides.",
        ("tests/rules/test_policy_commands.py::test_a_command_that_is_not_simple_is_left_to_the_client",),
    ),
    R(
        "POL6",
        "A rule that denies or asks finds its command in every chain and spelling; a hidden one is not allowed later.",
        (
            "tests/rules/test_policy_commands.py::test_a_denied_command_is_found_in_every_form",
            "tests/rules/test_policy_commands.py::test_a_command_that_may_be_denied_is_not_allowed_later",
            "tests/rules/test_policy_commands.py::test_other_commands_are_not_denied",
            "tests/rules/test_shell_command.py::test_the_commands_in_a_chain_are_found",
        ),
    ),
    R(
        "POL7",
        "Texts of calls that run no command are matched as texts.",
        ("tests/rules/test_policy_commands.py::test_texts_that_are_no_commands_are_matched_as_before",),
    ),
    R(
        "POL8",
        "The time to match a pattern grows linearly with the text.",
        (
            "tests/rules/test_text_pattern.py::test_a_pattern_matches_what_its_expression_matches",
            "tests/rules/test_text_pattern.py::test_the_time_grows_linearly_with_the_text",
            "tests/rules/test_text_pattern.py::test_a_long_text_is_unknown_for_a_regular_expression",
            "tests/rules/test_call_commands.py::test_the_number_of_commands_in_one_input_is_limited",
            "tests/rules/test_policy_commands.py::test_the_time_for_a_rule_grows_linearly",
        ),
    ),
    R(
        "HELD1",
        "Posted input that results in no event yet survives the death of the server, in every format.",
        (
            "tests/http/test_posted_input.py::test_half_a_tag_survives_a_restart",
            "tests/http/test_posted_input.py::test_a_lone_row_survives_a_restart",
            "tests/faults/test_killed_server.py::test_no_acknowledged_message_is_lost_if_the_server_is_killed",
        ),
    ),
    R(
        "HELD2",
        "Any process continues a posted conversation.",
        (
            "tests/http/test_posted_input.py::test_any_process_continues_a_conversation",
            "tests/http/test_posted_input.py::test_the_end_of_a_conversation_shows_what_was_held",
            "tests/http/test_posted_input.py::test_two_processes_that_read_one_conversation_at_once_lose_nothing",
            "tests/http/test_posted_input.py::test_a_repeated_text_with_a_secret_is_known_in_another_process",
            "tests/http/test_posted_input.py::test_a_body_of_several_transactions_is_not_interrupted",
            "tests/http/test_posted_input.py::test_a_damaged_conversation_begins_again",
            "tests/ingest/test_decoder_state.py::test_a_decoder_that_is_stored_after_every_message_returns_the_same_drafts",
            "tests/http/test_posted_input.py::test_a_claim_of_a_dead_process_does_not_delay_others",
        ),
    ),
    R(
        "HELD3",
        "A retry with the same key changes nothing, also if no event resulted; no answer has a seq of 0.",
        (
            "tests/http/test_posted_input.py::test_a_retry_of_a_body_without_events_changes_nothing",
            "tests/http/test_posted_input.py::test_an_answer_never_says_that_the_last_event_is_0",
            "tests/http/test_posted_input.py::test_a_body_is_complete_only_with_its_conversation",
            "tests/http/test_posted_input.py::test_equal_keys_of_two_callers_do_not_fail_other_bodies",
            "tests/http/test_posted_input.py::test_equal_keys_of_two_formats_with_long_bodies_are_a_conflict",
            "tests/api/test_posts.py::test_a_key_is_known_until_retention_removes_it",
        ),
    ),
    R(
        "HELD4",
        "Held input adds no event, has no secret at rest, and is deleted with its session or by retention.",
        (
            "tests/http/test_posted_input.py::test_held_input_adds_no_event_and_goes_with_its_session",
            "tests/http/test_posted_input.py::test_held_input_has_no_secret_at_rest",
            "tests/http/test_posted_input.py::test_a_secret_in_a_list_of_texts_is_masked_at_rest",
            "tests/http/test_posted_input.py::test_held_input_of_a_session_without_events_can_be_deleted",
            "tests/http/test_posted_input.py::test_retention_deletes_held_input",
            "tests/http/test_posted_input.py::test_a_secret_in_pieces_of_json_is_masked_at_rest",
            "tests/http/test_posted_input.py::test_a_body_may_end_with_any_secret",
        ),
    ),
    R(
        "HELD5",
        "The cost of a posted body does not depend on the length of its conversation.",
        ("tests/http/test_posted_input.py::test_the_cost_of_a_body_does_not_grow",),
    ),
)

TENANTS = (
    R(
        "TEN1",
        "A posted event cannot reference a blob that its session lacks; local copies of a log keep their blobs.",
        (
            "tests/http/test_tenants.py::test_a_posted_event_cannot_reference_a_blob_of_another_session",
            "tests/http/test_tenants.py::test_a_missing_blob_and_a_blob_of_another_session_get_the_same_response",
            "tests/http/test_tenants.py::test_a_posted_event_may_reference_a_blob_of_its_session",
            "tests/http/test_tenants.py::test_a_local_copy_of_a_log_keeps_its_blobs",
        ),
    ),
    R(
        "TEN2",
        "A deletion is announced only to those who could read the session; its streams end even if the name is reused.",
        (
            "tests/http/test_tenants.py::test_a_deletion_is_announced_only_to_those_who_could_read_the_session",
            "tests/http/test_tenants.py::test_a_stream_ends_with_its_session_although_another_has_the_name",
            "tests/http/test_access_matrix.py::test_topics_and_deletions_with_every_credential",
            "tests/http/test_paused_readers.py::test_a_paused_reader_does_not_get_a_new_session_of_the_same_name",
        ),
    ),
    R(
        "TEN3",
        "A caller without the right to read gets no content back from posts, commands, calls, approvals or conflicts.",
        (
            "tests/http/test_tenants.py::test_returned_events_have_no_content_for_a_caller_that_may_not_read",
            "tests/http/test_tenants.py::test_cancelling_returns_no_content_to_a_caller_that_may_not_read",
            "tests/http/test_tenants.py::test_mcp_tools_return_no_content_to_a_caller_that_may_not_read",
            "tests/http/test_tenants.py::test_a_submitter_that_may_not_read_gets_no_result",
            "tests/http/test_tenants.py::test_answering_returns_no_request_to_a_caller_that_may_not_read",
            "tests/http/test_tenants.py::test_a_chat_post_needs_the_right_to_read",
            "tests/http/test_tenants.py::test_an_approval_of_another_session_looks_like_a_missing_one",
            "tests/http/test_tenants.py::test_a_program_with_a_write_only_token_can_record_calls",
        ),
    ),
    R(
        "TEN4",
        "Callers cannot set the owner of a session, and its labels and agent's ids only if the host allows it.",
        (
            "tests/http/test_tenants.py::test_an_agents_id_is_set_only_by_callers_that_may",
            "tests/http/test_tenants.py::test_labels_are_set_only_by_callers_that_may",
            "tests/http/test_tenants.py::test_a_host_decides_who_sets_labels",
        ),
    ),
    R(
        "TEN5",
        "Callers with the same name are identified by their ids.",
        ("tests/http/test_tenants.py::test_callers_with_the_same_name_are_different_callers",),
    ),
    R(
        "TEN6",
        "Every route with each of 17 credentials: no leak, no unauthorised change, no server error.",
        (
            "tests/http/test_access_matrix.py::test_there_are_seventeen_credentials_of_every_kind",
            "tests/http/test_access_matrix.py::test_every_route_of_the_openapi_document_has_a_case",
            "tests/http/test_access_matrix.py::test_every_route_with_every_credential",
            "tests/http/test_access_matrix.py::test_lists_and_claims_without_a_session_show_only_what_the_caller_may_use",
        ),
    ),
    R(
        "TEN7",
        "Every event type in every format with each credential: no leak, no unauthorised change, no server error.",
        (
            "tests/http/test_access_matrix.py::test_every_format_posts_every_event_type_that_it_has",
            "tests/http/test_access_matrix.py::test_every_event_type_in_every_format_with_every_credential",
        ),
    ),
)

READERS = (
    R(
        "RDR1",
        "A reader that stops reading holds a bounded part of its stream, and larger data is shared and has a limit.",
        (
            "tests/http/test_stalled_readers.py::test_stalled_readers_cost_little_memory",
            "tests/ledger/test_snapshot_pages.py::test_the_pieces_are_a_snapshot",
            "tests/ledger/test_snapshot_pages.py::test_a_snapshot_stays_as_it_was_while_it_is_read",
            "tests/ledger/test_snapshot_pages.py::test_readers_at_the_same_place_share_what_they_hold",
            "tests/ledger/test_snapshot_pages.py::test_much_text_since_the_checkpoint_is_not_held",
            "tests/ledger/test_snapshot_pages.py::test_retention_ends_a_snapshot_that_is_being_read",
            "tests/http/test_held_data.py::test_the_same_object_is_counted_once",
            "tests/http/test_held_data.py::test_stalled_holders_are_cut_for_a_new_one",
            "tests/http/test_held_data.py::test_readers_of_many_large_events_do_not_add_up",
            "tests/http/test_paused_readers.py::test_large_responses_that_are_not_accepted_have_a_limit",
            "tests/http/test_paused_readers.py::test_a_large_export_counts_as_held_data",
            "tests/http/test_paused_readers.py::test_a_reader_whose_time_is_over_can_be_cut",
            "tests/http/test_paused_readers.py::test_a_list_is_complete_although_its_readers_are_admitted_slowly",
        ),
    ),
    R(
        "RDR2",
        "A client that accepts nothing for too long is disconnected, and its socket and unsent data are gone.",
        (
            "tests/http/test_stalled_readers.py::test_the_sockets_of_stalled_readers_are_closed",
            "tests/http/test_stalled_readers.py::test_a_slow_reader_gets_everything",
        ),
    ),
    R(
        "RDR3",
        "Each principal has a share of the readers; above it the answer is 503 with Retry-After.",
        ("tests/http/test_stalled_readers.py::test_a_principal_has_a_share_of_the_readers",),
    ),
    R(
        "RDR4",
        "A request that is never finished is answered with 408, or closed, and its headers have a maximum size.",
        (
            "tests/http/test_stalled_readers.py::test_an_unfinished_request_times_out",
            "tests/http/test_stalled_readers.py::test_a_connection_without_a_request_is_closed",
            "tests/http/test_stalled_readers.py::test_a_slow_request_is_answered",
            "tests/http/test_stalled_readers.py::test_headers_have_a_maximum_size",
        ),
    ),
)

BODIES = (
    R(
        "BODY1",
        "A body with too many values or messages is refused with 413 and the limit, before it is parsed.",
        (
            "tests/http/test_large_bodies.py::test_a_body_of_too_many_values_or_messages_is_refused",
            "tests/http/test_large_bodies.py::test_every_route_limits_the_values_of_its_body",
            "tests/http/test_large_bodies.py::test_commas_and_brackets_inside_strings_are_not_values",
            "tests/model/test_codec.py::TestParseJson::test_the_scans_are_the_same_in_pieces_of_any_size",
            "tests/http/test_paused_readers.py::test_an_mcp_body_of_too_many_values_is_refused",
        ),
    ),
    R(
        "BODY2",
        "While a large body is processed, other requests are answered; they do not wait for its end.",
        (
            "tests/http/test_large_bodies.py::test_a_large_body_is_processed_beside_the_event_loop",
            "tests/http/test_large_bodies.py::test_small_bodies_need_no_thread",
            "tests/http/test_large_bodies.py::test_other_requests_are_answered_during_a_large_one",
        ),
    ),
    R(
        "BODY3",
        "While a session of 20,000 calls is exported, other requests are answered within 250 ms.",
        (
            "tests/http/test_large_bodies.py::test_a_large_session_is_exported_beside_the_event_loop",
            "tests/http/test_large_bodies.py::test_other_requests_are_answered_during_a_large_one",
        ),
    ),
)

EDGES = (
    R(
        "EDGE1",
        "Every route that lists 415 checks the content type of its body.",
        (
            "tests/http/test_media_types.py::test_another_media_type_is_refused",
            "tests/http/test_media_types.py::test_json_may_be_named_in_any_way",
            "tests/http/test_media_types.py::test_the_routes_with_a_body_are_complete",
        ),
    ),
    R(
        "EDGE2",
        "A revoked token ends its streams and waiting requests at once, whichever process revokes it.",
        (
            "tests/http/test_revoked_tokens.py::test_a_revoked_token_ends_its_streams",
            "tests/http/test_revoked_tokens.py::test_a_revoked_token_ends_waiting_requests",
            "tests/http/test_revoked_tokens.py::test_a_revoked_token_ends_its_mcp_streams",
            "tests/http/test_revoked_tokens.py::test_a_token_is_revoked_by_the_process_that_serves",
            "tests/http/test_revoked_tokens.py::test_a_stream_that_starts_during_the_revocation_ends",
            "tests/http/test_revoked_tokens.py::test_other_changes_do_not_end_a_stream",
        ),
    ),
    R(
        "EDGE3",
        "uv is installed only with one of the recorded hashes.",
        (
            "tests/docs/test_uv.py::test_uv_is_installed_with_a_hash",
            "tests/docs/test_uv.py::test_another_file_of_uv_is_not_installed",
        ),
    ),
    R(
        "EDGE4",
        "Vendored files have the recorded hashes, and are those of the packages that they are from.",
        (
            "tests/web/test_vendored.py::test_every_vendored_file_has_its_recorded_hash",
            "tests/web/test_vendored.py::test_vendored_files_equal_those_of_their_packages",
            "tests/web/test_vendored.py::test_a_changed_vendored_file_is_found",
        ),
    ),
)

FILES = (
    R(
        "FILE1",
        "New ledger files are for their owner only, with any umask; an existing file keeps its mode.",
        (
            "tests/store/test_ledger_files.py::test_new_files_are_for_their_owner_only",
            "tests/store/test_ledger_files.py::test_a_file_behind_a_link_is_for_its_owner_only",
            "tests/store/test_ledger_files.py::test_an_existing_file_keeps_its_mode",
        ),
    ),
    R(
        "FILE2",
        "Lock files follow no symbolic link, and opening a ledger again keeps its locks.",
        (
            "tests/store/test_ledger_files.py::test_a_lock_file_that_is_a_link_is_refused",
            "tests/store/test_ledger_files.py::test_opening_a_ledger_twice_keeps_its_locks",
        ),
    ),
    R(
        "FILE3",
        "A ledger file that is deleted or replaced while it is open is noticed: no process writes to it or creates it.",
        (
            "tests/store/test_ledger_files.py::test_a_lost_file_is_not_written_to",
            "tests/store/test_ledger_files.py::test_a_wal_without_its_database_is_not_deleted",
            "tests/store/test_ledger_files.py::test_followers_of_a_lost_file_get_the_error",
            "tests/store/test_ledger_files.py::test_a_server_whose_file_is_lost_answers_503",
        ),
    ),
)

SECRETS = (
    R(
        "RED1",
        "Assignments, headers, URL credentials, private keys of all kinds and tokens of Callslip are redacted.",
        (
            "tests/rules/test_redaction_kinds.py::test_a_secret_is_found",
            "tests/rules/test_redaction_kinds.py::test_a_secret_is_found_in_any_two_chunks",
            "tests/rules/test_redaction_stream.py::test_a_caller_cannot_declare_a_part_of_a_text_whole",
            "tests/rules/test_redaction_kinds.py::test_private_keys_of_every_kind_are_found",
            "tests/rules/test_redaction_kinds.py::test_private_keys_with_a_password_are_found",
            "tests/rules/test_redaction_kinds.py::test_pgp_private_keys_are_found",
            "tests/rules/test_redaction_kinds.py::test_members_are_found_by_their_names",
            "tests/rules/test_redaction_kinds.py::test_all_tokens_of_callslip_are_found",
            "tests/rules/test_redaction_kinds.py::test_the_time_grows_linearly",
        ),
    ),
    R(
        "RED2",
        "Ordinary texts, code and references to variables are not redacted.",
        (
            "tests/rules/test_redaction_kinds.py::test_ordinary_text_is_unchanged",
            "tests/rules/test_redaction_kinds.py::test_source_code_is_unchanged",
        ),
    ),
    R(
        "RED3",
        "The environment and headers of MCP servers are redacted by their position, with any value.",
        (
            "tests/rules/test_redaction_kinds.py::test_the_environment_and_headers_of_mcp_servers_are_secrets",
            "tests/rules/test_redaction_kinds.py::test_other_values_of_mcp_servers_are_kept",
            "tests/rules/test_redaction_kinds.py::test_secrets_found_by_position_are_restored",
            "tests/rules/test_redaction_kinds.py::test_recorded_acp_traffic_has_no_environment_of_mcp_servers",
        ),
    ),
    R(
        "RED4",
        "The secrets of a command are erased from all files of the ledger soon after the command has ended.",
        (
            "tests/commands/test_sealed_params.py::test_the_secrets_of_an_ended_command_are_erased",
            "tests/commands/test_sealed_params.py::test_a_long_reader_delays_erasing_but_no_write",
            "tests/commands/test_sealed_params.py::test_closing_a_ledger_erases_at_once",
        ),
    ),
)

OVERDUE = (
    R(
        "EXP1",
        "A command whose deadline passed while no process had the ledger open is expired in every view.",
        (
            "tests/commands/test_overdue_commands.py::test_an_overdue_command_is_expired_in_every_view",
            "tests/commands/test_overdue_commands.py::test_an_overdue_command_that_ran_is_expired_in_every_view",
            "tests/commands/test_overdue_commands.py::test_the_first_read_of_a_library_shows_an_overdue_command_as_expired",
            "tests/commands/test_overdue_commands.py::test_a_server_shows_an_overdue_command_as_expired_at_its_start",
            "tests/commands/test_overdue_commands.py::test_a_running_command_is_left_to_a_process_that_watches_it",
            "tests/commands/test_overdue_commands.py::test_a_command_that_awaits_approval_does_not_expire",
        ),
    ),
)

PAGE = (
    R(
        "PAGE1",
        "The time in which the page parses a text grows linearly: no text freezes it.",
        (
            "tests/web/test_patterns.py::test_long_texts_take_linear_time",
            "tests/web/test_patterns.py::test_a_long_fence_does_not_freeze_the_page",
        ),
    ),
)

OUTAGES = (
    R(
        "OUTAGE1",
        "After an outage of the database, processes and workers have the time of a lease to renew theirs.",
        (
            "tests/ledger/test_liveness.py::test_after_an_outage_owners_have_one_lease_to_renew",
            "tests/ledger/test_liveness.py::test_after_an_outage_workers_have_one_lease_to_renew",
            "tests/ledger/test_liveness.py::test_an_outage_delays_no_other_ends",
            "tests/ledger/test_liveness.py::test_an_outage_during_which_a_round_waits_ends_nothing_that_lives",
            "tests/ledger/test_liveness.py::test_each_failed_round_starts_the_wait_again",
            "tests/ledger/test_liveness.py::test_a_process_renews_its_leases_before_it_reaps_after_an_outage",
        ),
    ),
)

HOSTS = (
    R(
        "HOST1",
        "A process that is gone is known at once on its own machine only, also among copies of a virtual machine.",
        (
            "tests/ledger/test_liveness.py::test_a_copy_of_a_machine_is_another_machine",
            "tests/ledger/test_liveness.py::test_docks_radios_and_bridges_do_not_change_a_machine",
            "tests/ledger/test_liveness.py::test_a_dead_owner_of_an_earlier_version_is_known",
        ),
    ),
    R(
        "HOST2",
        "The clock of the store alone decides what is due, also if another machine's clock differs.",
        (
            "tests/ledger/test_liveness.py::test_only_the_clock_of_the_store_counts",
            "tests/wrap/test_approvals.py::test_a_request_without_an_answer_in_time_is_denied",
        ),
    ),
    R(
        "HOST3",
        "A round of the reaper reads one row for a living owner, for any number of its open calls and turns.",
        (
            "tests/ledger/test_liveness.py::test_a_round_does_not_read_the_calls_of_living_owners",
            "tests/store/test_store.py::StoreSuite::test_owners_of_open_calls_and_turns_are_listed_with_their_leases",
        ),
    ),
    R(
        "HOST4",
        "A process that runs for long keeps nothing in memory of sessions and connections that have ended.",
        (
            "tests/ledger/test_checkpoint.py::"
            "test_a_process_remembers_nothing_of_sessions_and_connections_that_have_ended",
        ),
    ),
)

HELD_TEXT = (
    R(
        "TAIL1",
        "Only the end of a text that may begin a secret is held back, for at most a second of silence.",
        (
            "tests/ledger/test_held_text.py::test_only_the_end_that_may_begin_a_secret_is_held_back",
            "tests/ledger/test_held_text.py::test_a_held_text_is_due_a_second_after_its_last_chunk",
        ),
    ),
    R(
        "TAIL2",
        "If a secret completes after its beginning was released, the rest of it is redacted.",
        (
            "tests/ledger/test_held_text.py::test_the_rest_of_a_secret_is_redacted_after_a_pause",
            "tests/ledger/test_held_text.py::test_a_secret_after_a_split_escape_is_redacted",
            "tests/ledger/test_held_text.py::test_a_real_pause_inside_a_key_reveals_only_its_beginning",
            "tests/ledger/test_held_text.py::test_a_secret_that_is_complete_before_a_pause_has_one_mark",
        ),
    ),
    R(
        "TAIL3",
        "Held text is released by the process that wrote it, or by any other one if that process is gone.",
        (
            "tests/ledger/test_held_text.py::test_text_held_by_a_killed_process_is_released_by_another",
            "tests/ledger/test_held_text.py::test_a_clock_that_is_set_back_does_not_delay_a_release",
            "tests/ledger/test_held_text.py::test_a_read_only_ledger_shows_what_is_in_the_log",
            "tests/ledger/test_held_text.py::test_an_idle_ledger_finds_due_texts_by_index",
            "tests/ledger/test_held_text.py::test_a_damaged_held_text_does_not_keep_the_ledger_from_opening",
        ),
    ),
    R(
        "TAIL4",
        "A chunk that is written in two parts is marked, written once for one key, and read by older versions.",
        (
            "tests/ledger/test_held_text.py::test_a_retry_returns_the_same_event_after_a_release",
            "tests/ledger/test_held_text.py::test_the_parts_of_a_chunk_are_marked",
            "tests/ledger/test_held_text.py::test_marks_in_any_order_lose_no_text",
            "tests/ledger/test_held_text.py::test_a_mark_must_be_a_boolean",
            "tests/ledger/test_held_text.py::test_an_older_version_releases_a_held_text_once",
            "tests/ledger/test_held_text.py::test_text_that_an_older_version_holds_is_released",
            "tests/ledger/test_held_text.py::test_a_copy_of_a_log_has_the_same_text",
        ),
    ),
    R(
        "TAIL5",
        "The text is the same wherever pauses fall, for declared and undeclared chunks.",
        (
            "tests/ledger/test_held_text.py::test_a_text_of_deltas_is_the_same_for_any_pauses",
            "tests/ledger/test_held_text.py::test_a_cumulative_text_is_the_same_for_any_pauses",
            "tests/ledger/test_held_text.py::test_a_cumulative_text_with_secrets_is_redacted_for_any_pauses",
            "tests/ledger/test_held_text.py::test_no_pause_reveals_a_secret",
        ),
    ),
    R(
        "TAIL6",
        "A chunk that is appended alone, which takes fewer steps, gives the same events, records and held text.",
        ("tests/ledger/test_held_text.py::test_a_single_chunk_is_written_like_a_draft",),
    ),
)

IMPORTS = (
    R(
        "IMP1",
        "The format of an import is detected from its first lines and named, or refused with the candidates.",
        (
            "tests/cli/test_import.py::test_the_format_is_detected_and_named",
            "tests/cli/test_import.py::test_an_ambiguous_file_is_refused_with_the_candidates",
            "tests/cli/test_import.py::test_a_file_without_messages_is_refused_with_the_line_and_the_reason",
            "tests/cli/test_import.py::test_an_empty_exported_document_has_events",
            "tests/cli/test_import.py::test_a_detected_pipe_is_imported_whole",
            "tests/ingest/test_detection.py::test_recorded_files_are_detected_and_none_is_mistaken",
            "tests/ingest/test_detection.py::test_an_ambiguous_head_lists_the_candidates",
            "tests/ingest/test_detection.py::test_a_head_of_another_kind_is_refused",
            "tests/ingest/test_detection.py::test_a_first_line_without_a_message_is_the_error",
            "tests/ingest/test_detection.py::test_reading_the_head_loses_no_line",
            "tests/ingest/test_detection.py::test_the_head_is_bounded_in_lines_and_bytes",
        ),
    ),
    R(
        "IMP2",
        "An import says how many lines it did not understand, and fails if that is most of them.",
        (
            "tests/cli/test_import.py::test_a_wrong_format_fails_and_says_how_many_lines_it_did_not_understand",
            "tests/cli/test_import.py::test_the_exit_status_says_whether_most_lines_were_not_understood",
            "tests/cli/test_import.py::test_a_transcript_of_a_terminal_agent_is_not_mistaken_for_another_format",
            "tests/ingest/test_detection.py::test_messages_of_a_protocol_without_events_are_understood",
            "tests/cli/test_import.py::test_a_copied_log_without_its_large_values_says_so",
        ),
    ),
    R(
        "IMP3",
        "A call that was refused keeps what its agent wrote about it and all its arguments.",
        (
            "tests/ingest/test_refused_calls.py::test_a_refused_call_of_a_recorded_agent_keeps_its_words",
            "tests/ingest/test_refused_calls.py::test_a_refused_call_keeps_its_whole_input",
            "tests/ingest/test_refused_calls.py::test_every_view_of_a_refused_call_is_the_same",
            "tests/ingest/test_refused_calls.py::test_a_snapshot_that_is_read_later_has_no_newer_report",
            "tests/ingest/test_refused_calls.py::test_the_report_is_shown_and_exported",
            "tests/ingest/test_refused_calls.py::test_a_report_is_the_text_of_the_agents_own_end",
            "tests/ingest/test_refused_calls.py::test_a_report_that_is_cut_says_so",
        ),
    ),
    R(
        "IMP4",
        "The end of an imported MCP recording marks no call that has ended as late.",
        (
            "tests/ingest/test_import_mcp_tasks.py::test_the_end_of_the_file_marks_no_ended_call_as_late",
            "tests/ingest/test_import_mcp_tasks.py::test_the_end_of_a_recording_has_no_event_without_effect",
        ),
    ),
    R(
        "IMP5",
        "Errors of MCP tools have no structured content, which the TypeScript SDK 1.x would validate.",
        (
            "tests/mcp/test_typescript_sdk.py::test_errors_are_results_for_the_typescript_sdk",
            "tests/mcp/test_typescript_sdk.py::test_results_have_structured_content_for_the_typescript_sdk",
        ),
    ),
    R(
        "IMP6",
        "The table of states and events in the docs has the verdicts of the code.",
        ("tests/docs/test_lifecycle_table.py::test_the_table_has_the_verdict_of_the_code_for_every_pair",),
    ),
)

REPLAYS = (
    R(
        "RPL1",
        "Turns that only an agent's replay has enter the log whole, as turns of their own, if all of them follow "
        "everything recorded; with and without message ids.",
        (
            "tests/formats/test_acp_replayed_turns.py::test_turns_of_an_agent_used_without_wrap_enter_whole",
            "tests/formats/test_acp_replayed_turns.py::test_loading_the_session_again_adds_nothing",
            "tests/formats/test_acp_replayed_turns.py::test_turns_that_the_agent_forgot_do_not_keep_new_ones_out",
            "tests/formats/test_acp_replayed_turns.py::test_a_prompt_that_was_sent_twice_is_two_turns",
            "tests/formats/test_acp_replayed_turns.py::"
            "test_an_agent_that_numbers_its_calls_in_every_turn_adds_a_new_call",
            "tests/formats/test_acp_replayed_turns.py::test_a_prompt_that_was_recorded_without_its_answer_is_recorded",
            "tests/formats/test_acp_replayed_turns.py::test_a_cancelled_prompt_does_not_keep_new_turns_out",
            "tests/formats/test_acp_replayed_turns.py::test_prompts_of_several_blocks_are_recognized",
            "tests/formats/test_acp_replayed_turns.py::test_plans_stay_in_their_turn",
            "tests/formats/test_acp_replayed_turns.py::test_notes_of_the_agent_are_no_prompts",
            "tests/formats/test_acp_replayed_turns.py::test_a_secret_in_a_prompt_does_not_make_it_new",
            "tests/rules/test_replayed_turns.py::test_turns_that_follow_the_recording_enter",
            "tests/rules/test_replayed_turns.py::test_prompts_that_the_agent_joined_are_recorded",
            "tests/rules/test_replayed_turns.py::test_calls_and_messages_decide_before_prompts",
            "tests/rules/test_replay_diff.py::test_turns_that_a_replay_adds_are_no_difference",
        ),
    ),
    R(
        "RPL2",
        "Otherwise none of them enters, and a notice counts them, once for the same turns.",
        (
            "tests/formats/test_acp_replayed_turns.py::test_a_turn_before_the_end_of_the_log_does_not_enter",
            "tests/formats/test_acp_replayed_turns.py::test_turns_enter_only_if_all_of_them_follow_everything_recorded",
            "tests/formats/test_acp_replayed_turns.py::test_known_message_ids_outweigh_equal_prompts",
            "tests/formats/test_acp_replayed_turns.py::test_a_forgotten_turn_at_the_end_keeps_new_turns_out",
            "tests/formats/test_acp_replayed_turns.py::test_no_turn_enters_while_a_turn_is_open",
            "tests/rules/test_replayed_turns.py::test_added_turns_are_in_the_order_of_the_replay",
            "tests/rules/test_replayed_turns.py::test_a_turn_between_recorded_turns_keeps_all_out",
            "tests/rules/test_replayed_turns.py::test_removed_turns_are_not_called_unrecorded",
            "tests/rules/test_replayed_turns.py::test_a_log_without_prompts_proves_nothing_after_retention",
            "tests/rules/test_replayed_turns.py::test_only_whole_recorded_prompts_are_joined",
            "tests/ingest/test_replays.py::test_turns_that_retention_removed_neither_enter_again_nor_are_counted",
            "tests/rules/test_replayed_turns.py::test_a_replay_without_prompts_is_not_compared",
            "tests/rules/test_replayed_turns.py::test_long_lists_that_differ_are_not_compared_in_detail",
        ),
    ),
    R(
        "RPL3",
        "A call of a recorded turn that only a replay has is not shown: a notice counts it, and the comparison with "
        "the replay lists it.",
        (
            "tests/formats/test_acp_replayed_turns.py::test_a_call_seen_only_in_a_replay_is_counted",
            "tests/rules/test_replay_diff.py::test_calls_and_messages_missing_in_the_recording_are_reported",
            "tests/rules/test_replay_diff.py::test_show_lists_a_call_that_only_the_replay_has",
        ),
    ),
    R(
        "RPL4",
        "A replay is decided and written in one transaction: a repeated import, a posted body that is sent again, and "
        "a copy of the log have the same result.",
        (
            "tests/ingest/test_replays.py::test_importing_a_replay_twice_changes_nothing",
            "tests/ingest/test_replays.py::test_a_copy_of_a_log_with_replays_is_equal",
            "tests/ingest/test_replays.py::test_a_long_replay_is_decided_and_written_at_once",
            "tests/ingest/test_replays.py::test_a_refused_part_of_a_replay_is_kept_as_raw",
            "tests/ingest/test_replays.py::test_a_refused_prompt_is_left_out_with_its_answers",
            "tests/ingest/test_replays.py::test_a_replay_with_many_refused_parts_adds_nothing",
            "tests/http/test_posted_replays.py::test_a_replay_posted_in_pieces_adds_the_turns_of_an_import",
        ),
    ),
)

ROWS = (
    R(
        "ROW1",
        "A row is an ORM object, a dataclass, a pydantic model, a row of a database driver or a dict, in snake_case or "
        "camelCase, also when it is recorded.",
        (
            "tests/formats/test_row_objects.py::test_objects_of_an_orm_are_rows",
            "tests/formats/test_row_objects.py::test_objects_of_an_orm_are_recorded",
            "tests/formats/test_row_objects.py::test_objects_with_attributes_are_rows",
            "tests/formats/test_row_objects.py::test_rows_of_a_database_driver_are_rows",
            "tests/formats/test_row_objects.py::test_objects_without_an_id_get_a_stable_one",
        ),
    ),
    R(
        "ROW2",
        "A value that is not a row raises with its index; a ledger keeps it as raw.",
        (
            "tests/formats/test_ai_sdk_v4_rows.py::test_a_value_that_is_not_a_row_is_refused_with_its_index",
            "tests/formats/test_row_objects.py::test_an_object_that_is_not_a_row_is_refused_with_its_index",
            "tests/formats/test_row_objects.py::test_recorded_objects_that_are_not_rows_are_kept_raw",
            "tests/http/test_rows_wire.py::test_rows_that_are_not_rows_are_kept_by_the_server",
        ),
    ),
    R(
        "ROW3",
        "In a history every call and every message has an annotation, also while it is open.",
        (
            "tests/formats/test_ai_sdk_v4.py::test_every_state_has_its_name",
            "tests/formats/test_ai_sdk_v4.py::test_a_message_is_complete_when_its_turn_has_ended",
            "tests/http/test_rows_wire.py::test_a_posted_chat_gives_its_literal_history",
        ),
    ),
    R(
        "ROW4",
        "A message of a ledger has the id, the time and the text of the row that closes it.",
        (
            "tests/formats/test_ai_sdk_v4.py::test_rows_imported_into_a_ledger_give_the_same_messages",
            "tests/formats/test_ai_sdk_v4.py::test_a_stored_message_gives_its_id_to_the_live_message",
            "tests/formats/test_row_objects.py::test_objects_of_an_orm_are_recorded",
            "tests/http/test_rows_wire.py::test_a_posted_chat_gives_its_literal_history",
        ),
    ),
    R(
        "ROW5",
        "The example chats of a database of messages pass at the wire, live and after a reload.",
        (
            "tests/http/test_rows_wire.py::test_a_chat_gives_its_literal_messages",
            "tests/http/test_rows_wire.py::test_a_posted_chat_gives_its_literal_history",
            "tests/http/test_rows_wire.py::test_a_client_sees_a_chat_live_as_after_a_reload",
        ),
    ),
    R(
        "ROW6",
        "Which tools require a user can be given when rows are read, and in the settings of a ledger or server.",
        (
            "tests/http/test_rows_wire.py::test_the_settings_name_the_tools_that_require_a_user",
            "tests/http/test_rows_wire.py::test_tools_that_require_a_user_are_refused_for_other_formats",
            "tests/formats/test_row_objects.py::test_recorded_calls_of_a_named_tool_wait_for_the_user",
            "tests/cli/test_rows_options.py::test_imported_calls_of_a_named_tool_had_a_request",
            "tests/cli/test_rows_options.py::test_a_server_knows_the_tools_that_require_a_user",
        ),
    ),
)

CLIENT_VIEWS = (
    R(
        "JS1",
        "callslip.js has the state of each command by message and id, the same from live events as from a history.",
        (
            "tests/web/test_session_views.py::test_a_page_of_commands_is_the_same_live_and_after_a_reload",
            "tests/web/test_session_views.py::test_equal_commands_are_updated_by_id",
            "tests/web/test_session_views.py::test_unknown_and_late_events_change_no_command",
            "tests/web/test_session_views.py::test_a_replay_of_an_older_state_moves_no_command_back",
            "tests/web/test_session_views.py::test_the_same_id_in_two_messages_is_two_commands",
            "tests/web/test_stream.py::test_types_match_the_client",
        ),
    ),
    R(
        "JS2",
        "callslip.js has the state of each execution by message and id, the same from live events as from a history.",
        (
            "tests/web/test_session_views.py::test_a_page_of_executions_is_the_same_live_and_after_a_reload",
            "tests/web/test_session_views.py::test_an_execution_id_is_found_by_its_message",
            "tests/web/test_session_views.py::test_a_replay_repeats_no_text",
        ),
    ),
    R(
        "JS3",
        "An example page in plain JavaScript shows a session live and after a reload, also after a lost connection.",
        (
            "tests/web/test_example_page.py::test_the_example_page_shows_each_command_live_and_after_a_reload",
            "tests/web/test_example_page.py::test_the_example_page_shows_each_execution_live_and_after_a_reload",
            "tests/web/test_example_page.py::test_the_example_page_reconnects_and_reports_refusals",
            "tests/web/test_example_page.py::test_the_example_page_is_accessible_and_fits",
        ),
    ),
)

OWN_CODE = (
    R(
        "GUIDE1",
        "callslip serve has options for the timeout of commands, the limit of a queue, its overflow and the window.",
        (
            "tests/cli/test_serve_options.py::test_serve_options_change_what_happens_to_commands",
            "tests/cli/test_serve_options.py::test_a_full_queue_of_a_server_refuses_by_default",
            "tests/cli/test_serve_options.py::test_serve_refuses_invalid_command_options",
        ),
    ),
    R(
        "GUIDE2",
        "Five guides start from a user's own code, and their examples run with the installed package alone.",
        (
            "tests/docs/test_own_code_guides.py::test_guides_for_own_code_run_with_the_installed_package",
            "tests/docs/test_own_code_guides.py::test_a_guide_for_own_code_shows_the_code_before_and_after",
            "tests/docs/test_docs.py::test_all_code_in_a_guide_is_run",
        ),
    ),
)

VIEWS = (
    R(
        "VIEW1",
        "The server filters and counts all entries of a session; the page shows matches that it had not loaded.",
        (
            "tests/api/test_entry_filter.py::test_a_filter_covers_all_calls_of_a_long_session",
            "tests/api/test_entry_filter.py::test_the_server_finds_what_the_page_finds_in_a_file",
            "tests/web/test_true_views.py::test_filter_and_counts_cover_calls_that_are_not_loaded",
        ),
    ),
    R(
        "VIEW2",
        "A filter is answered in pages, searches stored outputs, costs what has changed, and needs the right to read.",
        (
            "tests/api/test_entry_filter.py::test_matches_are_read_in_pages",
            "tests/api/test_entry_filter.py::test_an_extended_result_is_that_of_a_new_one",
            "tests/api/test_entry_filter.py::test_a_second_read_costs_what_has_changed",
            "tests/api/test_entry_filter.py::test_outputs_outside_the_log_are_searched",
            "tests/api/test_entry_filter.py::test_the_route_filters_what_the_caller_may_read",
        ),
    ),
    R(
        "VIEW3",
        "A call has one output on the page, which ends where the tool ended. Binary output is named.",
        (
            "tests/web/test_true_views.py::test_output_ends_where_the_tool_ended",
            "tests/web/test_full_output.py::test_a_call_has_one_output",
            "tests/web/test_full_output.py::test_binary_output_is_recognized",
        ),
    ),
    R(
        "VIEW4",
        "The size of what a tool cut from its output is shown, and copying takes all that is stored.",
        (
            "tests/agent/test_cut_output.py::test_a_call_says_how_much_of_its_output_was_cut",
            "tests/web/test_true_views.py::test_output_ends_where_the_tool_ended",
        ),
    ),
    R(
        "VIEW5",
        "A page without its server stops its clocks and explains errors; imported calls have no invented duration.",
        (
            "tests/web/test_true_views.py::test_page_without_its_server_claims_nothing",
            "tests/web/test_true_views.py::test_output_ends_where_the_tool_ended",
            "tests/ingest/test_import_times.py::test_an_event_without_a_time_has_that_of_the_event_before_it",
            "tests/cli/test_import.py::test_an_imported_call_shows_the_duration_of_its_producer_or_none",
        ),
    ),
)

ACP_ENTRIES = (
    R(
        "ENT1",
        "The entries of an ACP client are equal live, after a reload and in a new process, with and without JSON-RPC.",
        ("tests/http/test_acp_entries.py::test_the_entries_of_an_acp_client_are_equal_live_and_after_a_reload",),
    ),
    R(
        "ENT2",
        "The tool name of an ACP call is read from any field; a title is a name only if it is that of an MCP tool.",
        (
            "tests/formats/test_acp_entries.py::test_a_tool_name_is_cleaned_from_every_field",
            "tests/formats/test_acp_entries.py::test_another_title_is_no_tool_name",
            "tests/formats/test_acp_entries.py::test_a_title_does_not_replace_a_tool_name",
        ),
    ),
    R(
        "ENT3",
        "The text of the content is the output of an ACP call that has no other output.",
        (
            "tests/formats/test_acp_entries.py::test_the_text_of_the_content_is_the_output_of_a_call_without_another",
            "tests/formats/test_acp_entries.py::test_content_that_is_not_a_result_is_no_output",
        ),
    ),
    R(
        "ENT4",
        "Large content of a call is stored as a blob beside that of its output, and smaller content replaces it.",
        (
            "tests/formats/test_acp_entries.py::test_large_content_is_stored_outside_the_log",
            "tests/formats/test_acp_entries.py::test_smaller_content_replaces_large_content",
            "tests/formats/test_acp_entries.py::test_a_model_reads_that_output_is_cut_only_if_it_is",
            "tests/formats/test_large_content.py::test_an_output_does_not_replace_large_content",
            "tests/formats/test_large_content.py::test_a_complete_output_beside_large_content_is_not_cut",
            "tests/formats/test_large_content.py::test_a_complete_output_beside_large_content_is_for_the_model",
            "tests/formats/test_large_content.py::test_content_of_a_call_without_an_output_is_a_cut_output",
            "tests/formats/test_large_content.py::test_large_content_is_searched",
            "tests/web/test_acp_entries.py::test_large_content_and_large_output_are_loaded",
            "tests/web/test_full_output.py::test_each_part_has_its_own_blob",
        ),
    ),
    R(
        "ENT5",
        "A permission request shows the id of its protocol, and its own id by which it is answered.",
        (
            "tests/formats/test_acp_entries.py::test_the_request_id_is_that_of_the_protocol",
            "tests/formats/test_acp_entries.py::test_equal_request_ids_of_two_sessions_are_two_requests",
        ),
    ),
    R(
        "ENT6",
        "A notice of an agent is an entry at its place.",
        (
            "tests/formats/test_acp_entries.py::test_a_notice_of_an_agent_is_on_the_timeline",
            "tests/formats/test_acp_entries.py::test_a_notice_is_an_entry_that_ends_the_text_before_it",
            "tests/web/test_acp_entries.py::test_notices_and_priorities_are_shown",
        ),
    ),
    R(
        "ENT7",
        "The steps of a plan are shown with their priorities.",
        (
            "tests/formats/test_acp_entries.py::test_the_priorities_of_a_plan_are_shown",
            "tests/web/test_acp_entries.py::test_notices_and_priorities_are_shown",
        ),
    ),
    R(
        "ENT8",
        "What a program printed is shown as text, also if its agent records it within an object.",
        ("tests/formats/test_acp_entries.py::test_what_a_terminal_printed_is_text",),
    ),
    R(
        "ENT9",
        "A chunk that begins with the whole text proves a cumulative source, unless the text is short or repetitive.",
        (
            "tests/rules/test_chunk_proofs.py::test_a_chunk_with_the_whole_text_proves_a_cumulative_source",
            "tests/rules/test_chunk_proofs.py::test_the_proof_replaces_the_text_at_once_and_holds_for_later_messages",
            "tests/rules/test_chunk_proofs.py::test_deltas_of_a_repeated_piece_are_never_taken_as_cumulative",
            "tests/rules/test_chunk_proofs.py::test_cumulative_chunks_after_the_proof_give_the_text",
            "tests/rules/test_chunk_proofs.py::test_the_proof_costs_no_more_than_its_chunk",
        ),
    ),
    R(
        "ENT10",
        "The chunks of a wrapped agent can be declared as those of an import.",
        (
            "tests/wrap/test_wrap_options.py::test_the_chunks_of_an_agent_can_be_declared",
            "tests/wrap/test_wrap_options.py::test_an_invalid_use_of_chunks_is_an_error",
        ),
    ),
    R(
        "ENT11",
        "Redaction joins the same chunks to a text as the fold does.",
        (
            "tests/rules/test_held_messages.py::test_a_message_id_on_some_chunks_does_not_reveal_a_secret",
            "tests/rules/test_held_messages.py::test_held_text_stays_in_its_message",
            "tests/rules/test_held_messages.py::test_equal_chunks_that_may_begin_a_secret_prove_nothing",
            "tests/rules/test_held_messages.py::test_equal_deltas_within_a_secret_do_not_reveal_it",
        ),
    ),
    R(
        "ENT12",
        "A wrapped session is named after the agent, also if a shell starts it.",
        (
            "tests/wrap/test_wrap_options.py::test_a_command_of_a_shell_is_named_after_its_program",
            "tests/wrap/test_wrap_options.py::test_sessions_are_named_after_the_agent_and_not_after_bash",
            "tests/wrap/test_wrap_options.py::test_a_session_that_was_named_after_bash_continues",
        ),
    ),
)

PRODUCER_IDS = (
    R(
        "IDS1",
        "Ids of commands in a text and of a runtime are accepted with their session only; a call's own id everywhere.",
        (
            "tests/http/test_producer_ids.py::test_an_id_of_a_producer_names_a_call_only_within_its_session",
            "tests/http/test_producer_ids.py::test_an_id_of_a_producer_is_no_prefix_of_another_call",
            "tests/http/test_producer_ids.py::test_an_id_of_a_producer_may_be_the_id_of_another_call",
        ),
    ),
    R(
        "IDS2",
        "In one message every call has another id, and the ids of a call stay the same once it is shown.",
        (
            "tests/http/test_producer_ids.py::test_an_id_that_is_used_twice_in_a_message_is_shown_once",
            "tests/http/test_producer_ids.py::test_an_execution_id_that_arrives_before_the_start_counts",
        ),
    ),
    R(
        "IDS3",
        "The examples of the shell and act-observe formats are the same at the wire, live and after a reload.",
        ("tests/http/test_producer_ids.py::test_the_examples_of_a_format_pass_live_and_after_a_reload",),
    ),
    R(
        "IDS4",
        "An error is encoded once in every format, and an error object of a producer returns as it is.",
        (
            "tests/http/test_producer_ids.py::test_an_error_is_encoded_once",
            "tests/http/test_producer_ids.py::test_the_error_of_a_python_function_is_encoded_once",
            "tests/http/test_producer_ids.py::test_an_error_object_of_a_producer_returns_as_it_is",
        ),
    ),
)

TURNLESS_STREAMS = (
    R(
        "STR1",
        "Live, replayed and resumed streams show what the history has after every event, in turns and outside.",
        (
            "tests/laws/test_stream_laws.py::test_stream_and_history_agree_after_every_event",
            "tests/laws/test_stream_laws.py::test_stream_and_history_agree_for_any_log",
            "tests/http/test_stream_clients.py::test_a_stream_replayed_after_any_event_equals_the_history",
            "tests/http/test_stream_clients.py::test_a_stream_followed_from_the_start_equals_the_history",
            "tests/http/test_turnless_streams.py::test_a_session_without_turns_is_streamed_live",
            "tests/http/test_turnless_streams.py::test_what_precedes_the_first_text_is_streamed_with_it",
        ),
    ),
    R(
        "STR2",
        "The same entries are read for any checkpoint, after retention, and from the files of older versions.",
        (
            "tests/ledger/test_queries.py::test_a_loaded_turn_has_all_its_entries",
            "tests/http/test_turnless_streams.py::test_a_pruned_block_is_streamed_as_the_history_has_it",
            "tests/http/test_turnless_streams.py::test_a_session_of_an_old_ledger_is_streamed",
        ),
    ),
    R(
        "STR3",
        "Outside of turns a stream ends once: when a user message or a turn follows and its calls have ended.",
        (
            "tests/laws/test_turnless_laws.py::test_a_block_has_no_done_while_it_is_open_and_one_after_it",
            "tests/http/test_turnless_streams.py::test_a_session_without_turns_is_streamed_live",
            "tests/http/test_turnless_streams.py::test_the_end_waits_for_the_calls_of_the_block",
            "tests/http/test_turnless_streams.py::test_a_turn_ends_the_block_before_it",
        ),
    ),
    R(
        "STR4",
        "A reader gets the open turn or the last messages outside of turns, or those that the id of a message names.",
        (
            "tests/laws/test_turnless_laws.py::test_a_reader_who_names_no_turn_gets_the_current_one",
            "tests/http/test_turnless_streams.py::test_a_turn_ends_the_block_before_it",
            "tests/http/test_turnless_streams.py::test_a_reader_gets_the_newest_block_while_another_reads_the_one_before",
            "tests/http/test_turnless_streams.py::test_a_reader_that_reconnects_gets_the_block_from_its_start",
            "tests/http/test_turnless_streams.py::test_a_block_is_named_by_the_id_of_any_of_its_messages",
            "tests/http/test_turnless_streams.py::test_a_name_of_no_block_is_not_found",
            "tests/http/test_turnless_streams.py::test_a_turn_that_is_named_like_a_message_is_found",
            "tests/http/test_turnless_streams.py::test_the_command_line_takes_the_name_of_a_message",
        ),
    ),
    R(
        "STR5",
        "A chat client that answers a request of a call outside of turns reads on from there.",
        ("tests/http/test_turnless_streams.py::test_a_chat_client_continues_the_block_that_waited_for_its_answer",),
    ),
)

DATABASES = (
    R(
        "DB1",
        "Shown texts may contain NUL: events keep it, records have U+FFFD instead; ids and names with it are refused.",
        (
            "tests/rules/test_record_texts.py::test_the_texts_of_calls_and_sessions_contain_no_nul",
            "tests/rules/test_record_texts.py::test_the_texts_of_approvals_contain_no_nul",
            "tests/ledger/test_record_texts.py::test_no_text_column_contains_nul",
            "tests/ledger/test_record_texts.py::test_events_and_entries_keep_nul",
            "tests/ledger/test_record_texts.py::test_lone_surrogates_do_not_reach_records",
            "tests/ledger/test_record_texts.py::test_an_older_ledger_with_nul_is_migrated",
            "tests/ledger/test_validation.py::test_a_field_of_the_wrong_type_is_refused_by_name",
            "tests/http/test_posted_input.py::test_the_id_of_a_caller_may_contain_any_character",
        ),
    ),
    R(
        "DB2",
        "The password in the URL of a database is in no message, argument or file, and agents do not get it.",
        (
            "tests/model/test_database_url.py::test_a_password_is_masked",
            "tests/model/test_database_url.py::test_no_part_of_an_unescaped_password_is_shown",
            "tests/store/test_open.py::test_a_missing_driver_is_named_with_its_extra",
            "tests/cli/test_server_database.py::test_a_server_url_is_a_location_without_a_path",
            "tests/cli/test_server_database.py::test_an_invalid_server_url_is_refused_without_showing_it",
            "tests/cli/test_server_database.py::test_the_address_of_a_server_is_stored_in_the_data_folder",
            "tests/cli/test_server_database.py::test_an_empty_list_names_the_database_without_its_password",
            "tests/cli/test_server_database.py::test_a_ledger_is_shown_without_a_password",
            "tests/cli/test_server_database.py::test_an_agent_does_not_get_the_password",
            "tests/cli/test_server_database.py::test_a_worker_of_the_demo_gets_the_url_in_its_environment",
        ),
    ),
    R(
        "DB3",
        "The URL of a database chooses its engine; commands and `callslip doctor` need no file for one on a server.",
        (
            "tests/store/test_open.py::test_a_server_url_opens_the_engine_of_servers",
            "tests/store/test_open.py::test_a_file_is_opened_without_the_modules_of_the_other_engine",
            "tests/store/test_open.py::test_facts_of_a_server_come_from_its_engine",
            "tests/cli/test_server_database.py::test_commands_read_a_database_on_a_server",
            "tests/cli/test_server_database.py::test_doctor_reports_a_server_without_files",
            "tests/cli/test_server_database.py::test_doctor_reports_a_server_that_cannot_be_reached",
        ),
    ),
)

KILLS = (
    R(
        "KILL1",
        "On PostgreSQL, kills of servers, workers and the database lose nothing acknowledged and repeat nothing.",
        (
            "tests/postgres/test_chaos.py::test_servers_workers_and_the_database_are_killed",
            "tests/postgres/test_kills.py::test_runs_with_kills_lose_nothing_and_end",
            "tests/docs/test_ci.py::test_the_counts_of_a_test_that_passes_are_printed",
            "tests/postgres/test_waits.py::test_a_read_is_repeated_if_its_connection_is_lost_while_it_waits",
            "tests/postgres/test_waits.py::test_an_outcome_is_asked_for_again_if_the_question_fails",
            "tests/postgres/test_waits.py::test_a_server_that_starts_is_waited_for",
            "tests/postgres/test_kills.py::test_a_command_is_found_after_a_crash_that_reuses_transaction_numbers",
        ),
    ),
    R(
        "KILL3",
        "Every wait for PostgreSQL has a deadline, in the process and on the server.",
        (
            "tests/postgres/test_waits.py::test_no_step_waits_longer_than_its_deadline",
            "tests/postgres/test_waits.py::test_a_transaction_of_a_process_that_is_gone_ends_on_the_server",
            "tests/postgres/test_waits.py::test_statements_have_timeouts_on_the_server",
            "tests/postgres/test_waits.py::test_a_pooler_that_refuses_settings_gets_none",
            "tests/postgres/test_waits.py::test_a_write_that_is_always_disturbed_fails_in_time",
            "tests/postgres/test_waits.py::test_many_writes_fail_together_in_an_outage",
            "tests/postgres/test_waits.py::test_a_lane_that_was_cancelled_is_replaced",
            "tests/store/test_postgres_writer.py::test_a_write_over_a_slow_link_succeeds",
            "tests/store/test_postgres_writer.py::test_a_long_transaction_of_one_session_delays_no_other_and_no_owner",
        ),
    ),
    R(
        "KILL2",
        "A server that seems to hang shows the stacks of its tasks: at SIGUSR1, and if a write does not end.",
        (
            "tests/cli/test_stacks.py::test_the_stack_of_a_task_has_every_coroutine_it_is_in",
            "tests/cli/test_stacks.py::test_the_stacks_of_threads_are_shown",
            "tests/cli/test_stacks.py::test_a_server_writes_its_stacks_at_a_signal_and_continues",
            "tests/postgres/test_waits.py::test_a_write_that_hangs_is_logged_with_the_stacks_of_all_tasks",
        ),
    ),
)

OPERATIONS = (
    R(
        "OPS1",
        "A pooler may give each transaction another connection; changes are then found by polling.",
        (
            "tests/postgres/test_pooler.py::TestStoreBehindPooler::test_the_suite_runs_through_the_pooler",
            "tests/postgres/test_pooler.py::test_a_pooler_is_detected",
            "tests/postgres/test_pooler.py::test_commands_that_look_at_a_server_work_behind_a_pooler",
            "tests/postgres/test_pooler.py::test_processes_do_not_use_the_statements_of_each_other",
            "tests/postgres/test_pooler.py::test_a_follower_sees_writes_without_notifications",
            "tests/postgres/test_pooler.py::test_listening_is_given_up_behind_a_pooler",
            "tests/postgres/test_pooler.py::test_commands_are_claimed_by_another_process_behind_a_pooler",
            "tests/postgres/test_pooler.py::test_a_parameter_of_the_session_is_refused_by_the_pooler",
            "tests/postgres/test_pooler.py::test_calls_written_through_the_pooler_and_directly_are_verified",
        ),
    ),
    R(
        "OPS2",
        "`callslip serve` has options for connections and timeouts, and no read outlives its timeout for long.",
        (
            "tests/postgres/test_operations_guide.py::test_the_server_ends_a_read_that_was_given_up",
            "tests/cli/test_serve_options.py::test_connections_and_timeouts_of_a_database_can_be_set",
        ),
    ),
    R(
        "OPS3",
        "A dump, and a base backup with the archived log, restore every acknowledged event, and the ledger continues.",
        (
            "tests/postgres/test_operations_guide.py::test_a_restored_dump_continues_on_a_new_server",
            "tests/postgres/test_operations_guide.py::test_a_base_backup_and_the_archived_log_have_every_event",
        ),
    ),
    R(
        "OPS4",
        "A standby is read and followed, refuses writes, and is the ledger after its promotion, also if it lost some.",
        (
            "tests/postgres/test_operations_guide.py::test_a_standby_is_read_and_can_take_over",
            "tests/postgres/test_operations_guide.py::test_rows_of_a_server_that_was_replaced_are_forgotten",
        ),
    ),
    R(
        "OPS5",
        "Separate roles own, write and read a ledger; the URL chooses the schema and TLS.",
        (
            "tests/postgres/test_operations_guide.py::test_three_roles_own_write_and_read_a_ledger",
            "tests/postgres/test_operations_guide.py::test_ledgers_in_two_schemas_share_nothing",
            "tests/postgres/test_operations_guide.py::test_tls_parameters_of_the_url_are_used",
        ),
    ),
    R(
        "OPS6",
        "The guide has queries for monitoring; updates of sessions and write connections change no index.",
        (
            "tests/postgres/test_operations_guide.py::test_the_monitoring_queries_show_what_they_say",
            "tests/postgres/test_operations_guide.py::test_updates_of_sessions_and_write_connections_change_no_index",
        ),
    ),
    R(
        "OPS7",
        "A reader may ask a standby for a session that has an event which the reader knows from the primary.",
        ("tests/postgres/test_operations_guide.py::test_a_standby_waits_for_the_event_that_a_reader_needs",),
    ),
    R(
        "OPS8",
        "Retention deletes blobs that no event uses after a day; it looks for them once, and holds no lock meanwhile.",
        (
            "tests/store/test_store.py::StoreSuite::test_retention_deletes_unused_blobs_after_a_day",
            "tests/postgres/test_large_ledgers.py::test_unused_blobs_are_found_in_pages",
            "tests/postgres/test_large_ledgers.py::test_a_blob_that_is_stored_again_is_not_deleted",
            "tests/postgres/test_large_ledgers.py::test_retention_looks_for_unused_blobs_once",
        ),
    ),
    R(
        "OPS9",
        "On PostgreSQL pages of a large session, and what the reaper looks for, are read by index.",
        (
            "tests/postgres/test_large_ledgers.py::test_a_page_of_a_large_session_is_read_in_order",
            "tests/postgres/test_large_ledgers.py::test_a_round_of_the_reaper_reads_only_what_is_due",
        ),
    ),
)

MOVES = (
    R(
        "MOVE1",
        "`callslip admin migrate` creates or updates the tables of a database; concurrent starts do it once.",
        (
            "tests/cli/test_admin_migrate.py::test_an_empty_database_gets_the_newest_schema",
            "tests/cli/test_admin_migrate.py::test_an_older_file_is_migrated_and_keeps_its_sessions",
            "tests/cli/test_admin_migrate.py::test_processes_that_start_at_once_create_the_schema_once",
            "tests/cli/test_admin_migrate.py::test_processes_that_start_at_once_migrate_an_older_schema_once",
            "tests/cli/test_admin_migrate.py::test_processes_that_open_an_empty_database_at_once_all_work",
        ),
    ),
    R(
        "MOVE2",
        "Databases of other programs, newer schemas and users who may not create tables give a clear error.",
        (
            "tests/cli/test_admin_migrate.py::test_a_file_of_another_program_is_refused",
            "tests/cli/test_admin_migrate.py::test_a_database_with_tables_of_another_program_is_refused",
            "tests/cli/test_admin_migrate.py::test_a_newer_schema_that_this_version_cannot_read_is_refused",
            "tests/cli/test_admin_migrate.py::test_a_newer_schema_that_this_version_can_read_stays",
            "tests/cli/test_admin_migrate.py::test_a_file_that_can_only_be_read_is_migrated_only_if_nothing_is_to_do",
            "tests/cli/test_admin_migrate.py::test_a_user_that_may_not_create_tables_gets_a_clear_error",
            "tests/cli/test_admin_migrate.py::test_an_unreachable_server_is_named_without_its_password",
        ),
    ),
    R(
        "MOVE3",
        "`callslip admin copy` copies every row of a ledger between any two engines; exports and logs are equal bytes.",
        (
            "tests/store/test_copy.py::test_a_copy_has_every_row_of_every_table",
            "tests/store/test_copy.py::test_every_table_of_an_engine_is_copied_or_derived",
            "tests/store/test_copy.py::test_every_table_and_column_of_postgres_is_copied_or_derived",
            "tests/store/test_copy.py::test_the_unique_columns_of_tables_are_known",
            "tests/store/test_copy.py::test_the_unique_columns_of_postgres_are_known",
            "tests/store/test_copy.py::test_pages_of_large_rows_are_limited",
            "tests/store/test_copy.py::test_a_text_that_postgres_cannot_store_is_named",
            "tests/store/test_copy.py::test_problems_of_the_source_are_reported",
            "tests/cli/test_admin_copy.py::test_a_ledger_comes_back_from_postgres_byte_for_byte",
        ),
    ),
    R(
        "MOVE4",
        "In a copy approvals, commands, keys, conversations, tokens, blobs and new sessions work.",
        (
            "tests/store/test_copy.py::test_a_copy_continues_like_its_source",
            "tests/store/test_copy.py::test_ids_of_deleted_sessions_are_not_given_again",
            "tests/store/test_copy.py::test_a_queue_of_a_copy_has_as_much_room_as_before",
        ),
    ),
    R(
        "MOVE5",
        "A copy that is killed continues, also if its source has changed; one that is complete is not repeated.",
        (
            "tests/store/test_copy.py::test_an_interrupted_copy_continues",
            "tests/store/test_copy.py::test_a_copy_continues_after_the_source_has_changed",
            "tests/store/test_copy.py::test_a_copy_continues_after_a_session_was_created_again_with_a_lower_id",
            "tests/store/test_copy.py::test_a_copy_continues_if_unique_values_have_moved_to_lower_keys",
            "tests/store/test_copy.py::test_a_run_that_was_replaced_cannot_write",
            "tests/cli/test_admin_copy.py::test_a_copy_that_is_killed_continues",
        ),
    ),
    R(
        "MOVE6",
        "No program opens a copy that is not complete.",
        (
            "tests/store/test_copy.py::test_an_incomplete_copy_is_not_a_ledger",
            "tests/store/test_copy.py::test_an_older_version_cannot_open_an_incomplete_copy",
        ),
    ),
    R(
        "MOVE7",
        "A copy refuses a source in use, except for a snapshot, and a target that is in use or contains a ledger.",
        (
            "tests/store/test_copy.py::test_a_source_in_use_is_refused",
            "tests/store/test_copy.py::test_a_source_that_is_written_during_the_copy_is_noticed",
            "tests/store/test_copy.py::test_a_target_with_another_ledger_is_refused",
            "tests/store/test_copy.py::test_an_incomplete_copy_of_another_ledger_is_refused",
            "tests/store/test_copy.py::test_a_target_in_use_is_refused",
            "tests/store/test_copy.py::test_a_ledger_is_not_copied_to_itself",
            "tests/cli/test_admin_copy.py::test_the_source_of_a_running_server_is_refused",
            "tests/cli/test_admin_copy.py::test_a_snapshot_says_that_later_writes_are_missing",
            "tests/cli/test_admin_copy.py::test_bad_input_is_refused",
            "tests/cli/test_admin_copy.py::test_a_server_that_cannot_be_used_is_named_without_its_password",
        ),
    ),
    R(
        "MOVE8",
        "`verify`, and so a copy, reads pages from a database of any size, and tries a lost connection again.",
        (
            "tests/postgres/test_large_ledgers.py::test_a_check_reads_pages_of_the_tables",
            "tests/postgres/test_large_ledgers.py::test_a_check_finds_faults_on_every_page",
            "tests/postgres/test_large_ledgers.py::test_a_session_is_verified_in_pages",
            "tests/postgres/test_large_ledgers.py::test_the_rows_of_a_session_are_counted_in_parts",
            "tests/postgres/test_large_ledgers.py::test_a_session_is_verified_again_after_a_lost_connection",
            "tests/postgres/test_large_ledgers.py::test_a_verification_fails_if_the_connection_is_lost_again_and_again",
            "tests/ledger/test_verify.py::test_sessions_are_verified_in_one_snapshot",
            "tests/ledger/test_verify.py::test_a_session_that_is_newer_than_the_snapshot_is_verified",
            "tests/ledger/test_verify.py::test_a_page_of_large_events_is_limited",
        ),
    ),
    R(
        "MOVE9",
        "A copy that its user has too few rights for is refused before it begins.",
        ("tests/postgres/test_operations_guide.py::test_the_owner_fills_a_database_and_a_reader_copies_it",),
    ),
)

DATABASE_FAULTS = (
    R(
        "DBF1",
        "A connection that is lost at a commit changes nothing: the result is right, and a retry writes nothing again.",
        (
            "tests/postgres/test_ambiguous_commits.py::test_every_method_of_a_store_is_covered",
            "tests/postgres/test_ambiguous_commits.py::test_a_store_that_can_only_read_refuses_the_methods_that_write",
            "tests/postgres/test_ambiguous_commits.py::test_a_method_of_the_store_survives_a_lost_connection",
            "tests/postgres/test_ambiguous_commits.py::test_an_operation_survives_a_lost_connection",
            "tests/store/test_store.py::StoreSuite::test_a_token_that_is_stored_twice_is_one_token",
        ),
    ),
    R(
        "DBF2",
        "A fault of the network to clients or to the database loses nothing, and no operation waits without a timeout.",
        (
            "tests/postgres/test_fault_links.py::test_a_fault_of_a_link_loses_nothing",
            "tests/postgres/test_fault_links.py::test_no_operation_waits_for_ever",
            "tests/postgres/test_fault_links.py::test_a_ledger_closes_while_its_database_does_not_answer",
            "tests/postgres/test_fault_links.py::test_a_follower_notices_a_half_open_connection",
            "tests/postgres/test_fault_links.py::test_a_remote_ledger_waits_for_the_database_of_its_server",
        ),
    ),
    R(
        "DBF3",
        "Servers of two versions can share a database in PostgreSQL, and a migration that has landed does not change.",
        (
            "tests/postgres/test_versions.py::test_the_first_version_of_the_engine_works_beside_the_newest",
            "tests/postgres/test_versions.py::test_servers_of_the_first_version_work_beside_the_newest",
            "tests/postgres/test_versions.py::test_a_migration_that_has_landed_does_not_change",
            "tests/postgres/test_versions.py::test_every_migration_is_recorded",
        ),
    ),
    R(
        "DBF4",
        "A full or read-only database, or one without a free connection, gives a clear error and works again later.",
        (
            "tests/postgres/test_expected_answers.py::test_a_full_disk_refuses_what_needs_space",
            "tests/postgres/test_expected_answers.py::"
            "test_a_database_that_becomes_read_only_refuses_writes_until_it_is_writable",
            "tests/postgres/test_expected_answers.py::test_a_role_without_rights_can_only_read",
            "tests/postgres/test_expected_answers.py::test_a_standby_can_only_be_read_until_it_is_promoted",
            "tests/postgres/test_expected_answers.py::test_reads_that_find_all_connections_in_use_fail_in_time",
            "tests/postgres/test_expected_answers.py::test_reads_that_find_all_connections_in_use_wait_for_one",
            "tests/postgres/test_expected_answers.py::test_a_server_without_a_free_connection_is_tried_until_the_timeout",
        ),
    ),
    R(
        "DBF5",
        "A restart of PostgreSQL is a pause, and a clock that jumps by an hour on one machine ends nothing.",
        (
            "tests/postgres/test_expected_answers.py::test_a_restart_of_postgres_is_only_a_pause",
            "tests/postgres/test_expected_answers.py::test_a_clock_of_one_machine_that_jumps_by_an_hour_ends_nothing",
        ),
    ),
    R(
        "DBF6",
        "Idle readers share connections and questions to the server, and cursors are checked alike on every server.",
        (
            "tests/postgres/test_expected_answers.py::test_2000_idle_readers_cost_little_and_miss_nothing",
            "tests/postgres/test_expected_answers.py::test_a_cursor_ahead_of_the_head_is_refused",
            "tests/postgres/test_expected_answers.py::test_a_cursor_below_retention_is_expired",
        ),
    ),
    R(
        "DBF7",
        "A row that the server refuses fails only its own write, not those that are written together with it.",
        ("tests/store/test_postgres_writer.py::test_a_row_that_the_server_refuses_fails_only_its_task",),
    ),
    R(
        "DBF8",
        "Sessions are listed in the order of their creation, also if the known time of the server was corrected.",
        (
            "tests/store/test_postgres_writer.py::test_a_correction_does_not_set_the_known_time_back",
            "tests/store/test_postgres_writer.py::test_sessions_created_together_are_listed_newest_first",
        ),
    ),
    R(
        "DBF9",
        "On PostgreSQL the memory of a process is limited; an unexpected error does not end the search for changes.",
        (
            "tests/store/test_postgres_writer.py::test_a_process_remembers_a_limited_number_of_records",
            "tests/store/test_postgres_writer.py::test_a_fault_while_looking_for_changes_is_logged_and_does_not_end_it",
        ),
    ),
    R(
        "DBF10",
        "On PostgreSQL a session that another transaction locks, or that is being deleted, delays no other session.",
        (
            "tests/store/test_postgres_writer.py::test_sessions_do_not_wait_for_each_other",
            "tests/store/test_postgres_writer.py::test_locked_sessions_delay_no_other_write",
            "tests/store/test_postgres_writer.py::test_a_close_of_an_owner_waits_for_locked_writes_before_it",
            "tests/store/test_postgres_writer.py::test_long_tasks_delay_no_other_write",
            "tests/store/test_postgres_writer.py::test_a_long_transaction_of_one_session_delays_no_other_and_no_owner",
            "tests/store/test_postgres_writer.py::test_a_write_to_a_locked_session_fails_at_its_deadline",
            "tests/store/test_postgres_writer.py::test_a_write_does_not_wait_for_a_deletion_forever",
        ),
    ),
    R(
        "DBF11",
        "A write may use hundreds of records that its process does not know: they are read in a few steps.",
        (
            "tests/ledger/test_large_writes.py::test_a_large_write_with_keys_can_be_repeated_elsewhere",
            "tests/ledger/test_large_writes.py::test_a_log_of_many_calls_can_be_copied_twice",
            "tests/ledger/test_large_writes.py::test_many_calls_of_a_closed_process_end_together",
            "tests/ledger/test_large_writes.py::test_many_large_outputs_are_written_together",
            "tests/ledger/test_large_writes.py::test_a_full_queue_makes_room_for_many_commands_at_once",
            "tests/store/test_postgres_writer.py::test_records_of_a_large_write_are_read_together",
            "tests/store/test_postgres_writer.py::test_all_calls_of_an_owner_are_read_together",
            "tests/store/test_postgres_writer.py::test_the_oldest_commands_of_a_full_queue_are_read_together",
            "tests/store/test_postgres_writer.py::test_a_decision_without_end_fails_alone",
        ),
    ),
)

POSTGRES_EDGES = (
    R(
        "PGE1",
        "A database that cannot be used is named with the reason, and a command that reads creates no tables.",
        (
            "tests/postgres/test_edges.py::test_a_server_that_cannot_be_reached_is_named",
            "tests/postgres/test_edges.py::test_an_unknown_host_is_named",
            "tests/postgres/test_edges.py::test_a_wrong_password_is_named",
            "tests/postgres/test_edges.py::test_a_missing_database_is_named",
            "tests/postgres/test_edges.py::test_commands_that_need_a_ledger_create_none",
            "tests/store/test_open.py::test_a_missing_driver_is_named_with_its_extra",
        ),
    ),
    R(
        "PGE2",
        "`callslip doctor` reports the size, the connections and the clock of a server, and settings that risk data.",
        ("tests/postgres/test_edges.py::test_doctor_reports_settings_with_which_a_crash_loses_data",),
    ),
    R(
        "PGE3",
        "Commands read, write, import, export, verify and remove sessions in a database on a server.",
        ("tests/postgres/test_edges.py::test_commands_read_write_and_remove_a_session",),
    ),
    R(
        "PGE4",
        "Wrapped agents, `run`, workers, MCP, mounted apps and the demo use a database; no agent gets its password.",
        (
            "tests/postgres/test_edges.py::test_a_wrapped_agent_is_recorded_and_does_not_get_the_password",
            "tests/postgres/test_edges.py::test_an_agent_with_a_shell_is_approved_from_another_terminal",
            "tests/postgres/test_edges.py::test_a_worker_runs_a_submitted_command",
            "tests/postgres/test_edges.py::test_an_mcp_client_submits_a_command",
            "tests/postgres/test_edges.py::test_a_mounted_app_serves_the_ledger",
            "tests/postgres/test_edges.py::test_a_program_without_an_event_loop_uses_a_ledger",
            "tests/postgres/test_edges.py::test_the_demo_plays_on_a_server",
        ),
    ),
    R(
        "PGE5",
        "A ledger is in the first schema of search_path, and uses nothing in the others; one that is missing is named.",
        (
            "tests/postgres/test_schemas.py::test_a_ledger_is_created_beside_the_one_in_public",
            "tests/postgres/test_schemas.py::test_every_connection_uses_one_schema",
            "tests/postgres/test_schemas.py::test_commands_create_a_ledger_in_the_first_schema",
            "tests/postgres/test_schemas.py::test_the_schema_may_have_any_name",
            "tests/postgres/test_schemas.py::test_a_schema_that_does_not_exist_is_named",
            "tests/postgres/test_schemas.py::test_a_role_sets_the_schema",
            "tests/postgres/test_schemas.py::test_tables_of_another_program_are_not_used",
            "tests/postgres/test_schemas.py::test_what_a_ledger_lacks_is_not_taken_from_a_later_schema",
            "tests/postgres/test_schemas.py::test_the_schema_of_a_role_is_used_behind_a_pooler",
            "tests/postgres/test_schemas.py::test_the_first_schema_of_a_path_must_be_used",
            "tests/postgres/test_schemas.py::test_names_of_all_migrations_are_known",
        ),
    ),
)

SERVERS = (
    R(
        "PGS1",
        "Each server of a database writes, reads and streams any session, and learns at once of what others write.",
        (
            "tests/postgres/test_several_servers.py::test_a_reader_gets_what_another_server_wrote",
            "tests/postgres/test_several_servers.py::test_lists_show_what_another_server_wrote",
            "tests/postgres/test_several_servers.py::test_a_blob_is_read_through_another_server",
            "tests/postgres/test_several_servers.py::test_a_conversation_continues_on_another_server",
            "tests/postgres/test_several_servers.py::test_each_server_reports_the_whole_ledger",
        ),
    ),
    R(
        "PGS2",
        "An approval that was requested through one server is answered through any; the first answer wins.",
        (
            "tests/postgres/test_several_servers.py::test_a_call_that_waits_is_approved_through_another_server",
            "tests/postgres/test_several_servers.py::test_of_two_answers_through_two_servers_one_wins",
        ),
    ),
    R(
        "PGS3",
        "Commands and calls are run, ended and cancelled through any server, and end once.",
        (
            "tests/postgres/test_several_servers.py::test_of_cancel_and_result_through_two_servers_one_ends_the_call",
            "tests/postgres/test_several_servers.py::test_a_worker_gets_a_command_that_another_server_took",
            "tests/postgres/test_several_servers.py::test_an_mcp_task_is_read_and_cancelled_through_another_server",
        ),
    ),
    R(
        "PGS4",
        "A session has one turn in progress on all servers, and any of them can stop it.",
        ("tests/postgres/test_several_servers.py::test_a_prompt_is_stopped_through_another_server",),
    ),
    R(
        "PGS5",
        "A revoked token ends its streams on every server at once.",
        ("tests/postgres/test_several_servers.py::test_a_token_is_revoked_for_all_servers_at_once",),
    ),
    R(
        "PGS6",
        "What a killed server owned ends one lease later, with a reason; requests for approval and their calls stay.",
        (
            "tests/postgres/test_several_servers.py::test_a_killed_server_ends_what_it_owned_after_one_lease",
            "tests/postgres/test_several_servers.py::test_an_approval_outlives_the_server_that_took_it",
            "tests/postgres/test_waiting_approvals.py::test_a_waiting_call_outlives_its_server",
            "tests/postgres/test_waiting_approvals.py::test_a_waiting_call_outlives_its_server_before_it_follows",
        ),
    ),
    R(
        "PGS8",
        "Idle readers cost one query for all of them when anything may have changed.",
        ("tests/ledger/test_slow_reads.py::test_a_hint_without_names_reads_only_the_sessions_that_have_changed",),
    ),
    R(
        "PGS9",
        "A process misses no command that others change, and does not read one again while a transaction is open.",
        (
            "tests/postgres/test_changed_commands.py::test_an_open_transaction_does_not_let_commands_be_read_again",
            "tests/postgres/test_changed_commands.py::test_a_cursor_of_an_older_version_is_accepted",
            "tests/store/test_postgres_cursor.py::test_every_row_is_read_once_it_is_visible",
            "tests/store/test_postgres_cursor.py::test_a_number_that_is_used_again_and_still_open_is_read",
            "tests/store/test_postgres_cursor.py::test_rows_are_not_read_again_while_an_older_transaction_is_open",
            "tests/store/test_postgres_cursor.py::test_a_standby_of_the_same_server_continues_a_cursor",
            "tests/store/test_postgres_cursor.py::test_a_cursor_of_an_older_version_is_accepted",
            "tests/postgres/test_kills.py::test_a_command_is_found_after_a_crash_that_reuses_transaction_numbers",
        ),
    ),
    R(
        "PGS10",
        "After a failover that lost transactions a process reads all open commands again.",
        (
            "tests/postgres/test_changed_commands.py::test_after_a_failover_all_open_commands_are_read",
            "tests/store/test_postgres_cursor.py::test_a_failover_that_lost_transactions_ends_a_cursor",
            "tests/store/test_postgres_cursor.py::test_numbers_that_went_back_end_a_cursor",
        ),
    ),
    R(
        "PGS7",
        "An outage of the database that is longer than a lease ends nothing that lives.",
        (
            "tests/postgres/test_several_servers.py::test_an_outage_of_the_database_ends_nothing_that_lives",
            "tests/postgres/test_waiting_approvals.py::test_a_waiting_call_outlives_a_restart_of_the_database",
        ),
    ),
)

SESSION_LISTS = (
    R(
        "USE1",
        "The last report of a response counts, incomplete ones are marked; turns count only for what responses lack.",
        (
            "tests/ledger/test_summaries.py::test_the_last_report_of_a_response_counts",
            "tests/ledger/test_summaries.py::test_reports_without_an_id_count_each",
            "tests/ledger/test_summaries.py::test_the_sum_of_a_turn_counts_only_without_its_responses",
            "tests/ledger/test_summaries.py::test_the_cost_of_a_turn_counts_unless_responses_state_theirs",
            "tests/ledger/test_summaries.py::test_the_tokens_of_a_turn_count_if_responses_state_only_costs",
            "tests/ledger/test_summaries.py::test_impossible_usage_is_refused",
        ),
    ),
    R(
        "USE2",
        "Usage is added up by day, model, project, agent, session, turn and call of a sub-agent, with filters.",
        (
            "tests/ledger/test_summaries.py::test_usage_is_added_up_by_each_group",
            "tests/ledger/test_summaries.py::test_a_time_that_no_event_can_have_is_refused",
            "tests/http/test_session_lists.py::test_usage_over_http_is_that_of_the_ledger",
            "tests/http/test_session_lists.py::test_usage_of_sessions_that_a_caller_may_not_read_is_left_out",
            "tests/cli/test_session_lists.py::test_usage_is_a_table_or_json",
        ),
    ),
    R(
        "USE5",
        "The page shows tokens and costs by day, project, agent, model and session; what is unknown is never zero.",
        (
            "tests/ledger/test_summaries.py::test_tokens_without_a_stated_cost_are_counted",
            "tests/web/test_usage_page.py::test_what_is_unknown_is_not_zero",
            "tests/web/test_usage_page.py::test_usage_has_a_time_and_filters_in_the_address",
        ),
    ),
    R(
        "USE3",
        "Retention keeps the sums; `verify` finds every difference.",
        (
            "tests/ledger/test_summaries.py::test_retention_keeps_the_sums",
            "tests/ledger/test_summaries.py::test_verify_compares_summaries_and_usage",
        ),
    ),
    R(
        "USE4",
        "Model APIs, the AI SDK, AG-UI and ACP report tokens of responses or turns, and the cost where it is stated.",
        (
            "tests/formats/test_usage.py::test_each_api_counts_in_its_own_way",
            "tests/formats/test_usage.py::test_a_value_without_tokens_is_no_report",
            "tests/formats/test_usage.py::test_a_cost_is_read_where_it_is_stated",
            "tests/formats/test_usage.py::test_a_stream_of_chat_completions_reports_its_usage_once",
            "tests/formats/test_usage.py::test_a_response_of_the_messages_api_that_breaks_off_is_marked",
            "tests/formats/test_usage.py::test_a_response_of_the_responses_api_reports_its_usage",
            "tests/formats/test_usage.py::test_metadata_of_the_ai_sdk_is_the_usage_of_a_turn",
            "tests/formats/test_usage.py::test_a_run_of_ag_ui_reports_the_usage_of_a_turn",
            "tests/formats/test_usage.py::test_acp_reports_the_tokens_of_a_turn_and_the_cost_of_the_session",
        ),
    ),
    R(
        "SUB1",
        "Entries of a sub-agent have the call that started it as their parent, and are shown apart.",
        (
            "tests/formats/test_subagents.py::test_entries_of_a_subagent_have_its_call_as_parent",
            "tests/formats/test_subagents.py::test_an_exported_page_shows_the_work_of_a_subagent_apart",
            "tests/cli/test_transcripts.py::test_the_work_of_a_sub_agent_is_printed_apart",
            "tests/web/test_acp_entries.py::test_the_work_of_a_sub_agent_is_shown_apart",
        ),
    ),
    R(
        "SUB2",
        "Histories and streams for models and chat clients have the result of a sub-agent, and not its work.",
        (
            "tests/formats/test_subagents.py::test_a_history_has_the_result_of_a_subagent_and_not_its_work",
            "tests/formats/test_subagents.py::test_a_stream_of_a_turn_has_the_result_of_a_subagent_and_not_its_work",
        ),
    ),
    R(
        "SUB3",
        "The span of a sub-agent's call is inside that of its parent.",
        ("tests/formats/test_subagents.py::test_the_span_of_a_subagents_call_is_inside_that_of_its_parent",),
    ),
    R(
        "SUB4",
        "Updates of ACP that name a parent call are those of its sub-agent.",
        (
            "tests/formats/test_subagents.py::test_acp_updates_with_a_parent_are_of_its_subagent",
            "tests/formats/test_subagents.py::test_a_parent_that_is_not_known_stays_as_its_foreign_id",
        ),
    ),
    R(
        "SUB5",
        "What a sub-agent did before its call is known gets the call as its parent, live and after a reload.",
        (
            "tests/ledger/test_late_parents.py::test_entries_of_a_sub_agent_get_their_parent_later",
            "tests/ledger/test_late_parents.py::test_a_file_of_a_sub_agent_may_be_read_first",
            "tests/rules/test_fold.py::test_a_checkpoint_has_few_entries_of_unknown_sub_agents",
        ),
    ),
    R(
        "LIST1",
        "A session is listed with prompt, project, branch, agent, model, state, calls, failures, usage and times.",
        (
            "tests/ledger/test_summaries.py::test_a_session_has_what_people_recognize",
            "tests/ledger/test_summaries.py::test_the_state_is_what_the_session_does_now",
            "tests/ledger/test_summaries.py::test_long_and_odd_facts_are_listed",
            "tests/ledger/test_summaries.py::test_times_of_another_clock_do_not_keep_a_session_first",
        ),
    ),
    R(
        "LIST2",
        "Sessions are filtered and sorted by these, in pages, in Python, over HTTP and by `callslip ls`.",
        (
            "tests/ledger/test_summaries.py::test_sessions_are_filtered_and_sorted",
            "tests/ledger/test_summaries.py::test_an_unknown_filter_is_refused",
            "tests/ledger/test_summaries.py::test_a_limit_that_no_list_can_have_is_refused",
            "tests/http/test_session_lists.py::test_a_list_over_http_is_that_of_the_ledger",
            "tests/cli/test_session_lists.py::test_ls_filters_and_sorts_sessions",
        ),
    ),
    R(
        "LIST3",
        "A list reads only new events, waits a second at most, says if it is not complete, and works without writing.",
        (
            "tests/ledger/test_summaries.py::test_a_list_reads_only_what_is_new",
            "tests/ledger/test_summaries.py::test_old_sessions_are_not_looked_at_again",
            "tests/ledger/test_summaries.py::test_many_new_sessions_are_listed_before_they_are_read",
            "tests/ledger/test_summaries.py::test_a_long_log_is_read_in_steps",
            "tests/ledger/test_summaries.py::test_a_full_disk_does_not_keep_a_list_from_being_read",
            "tests/ledger/test_summaries.py::test_a_newer_version_derives_summaries_again",
            "tests/ledger/test_summaries.py::test_a_damaged_event_is_left_out",
            "tests/ledger/test_summaries.py::test_a_deleted_session_leaves_nothing",
            "tests/ledger/test_summaries.py::test_verify_compares_summaries_and_usage",
            "tests/ledger/test_summaries.py::test_a_read_only_ledger_lists_what_it_has",
            "tests/ledger/test_summaries.py::test_a_ledger_that_cannot_be_migrated_is_listed",
        ),
    ),
    R(
        "LIST4",
        "The usual lists of sessions use an index, so a page of 10,000 sessions does not read all of them.",
        ("tests/ledger/test_summaries.py::test_the_usual_lists_use_an_index",),
    ),
    R(
        "LIST5",
        "A wrapped agent's session names the agent and the folder that it works in.",
        ("tests/formats/test_usage.py::test_acp_names_the_agent_and_the_folder_of_a_session",),
    ),
    R(
        "LIST6",
        "Only the main token, or a user who may delete sessions, deletes one over HTTP.",
        ("tests/http/test_session_lists.py::test_a_session_is_deleted_by_callers_with_that_right",),
    ),
    R(
        "LIST7",
        "The page lists sessions with state, agent, project, failures and tokens, filters, sorts and deletes them.",
        (
            "tests/web/test_sessions_page.py::test_sessions_show_what_people_recognize",
            "tests/web/test_sessions_page.py::test_sessions_are_filtered_by_words_and_state",
            "tests/web/test_sessions_page.py::test_filters_of_sessions_are_in_the_address",
            "tests/web/test_sessions_page.py::test_sessions_are_sorted",
            "tests/web/test_sessions_page.py::test_rows_have_one_height",
            "tests/web/test_sessions_page.py::test_a_session_is_deleted_after_a_confirmation",
        ),
    ),
)

TRANSCRIPTS = (
    R(
        "TRN1",
        "An agent's history is imported from its own folder or from named files, with the facts and times in it.",
        (
            "tests/transcripts/test_importer.py::test_what_has_no_time_gets_that_of_its_transcript",
            "tests/transcripts/test_importer.py::test_the_last_text_of_a_file_is_complete",
            "tests/cli/test_transcripts.py::test_an_agents_own_folder_is_imported",
            "tests/cli/test_transcripts.py::test_files_and_folders_can_be_named",
            "tests/transcripts/test_importer.py::test_a_history_is_imported_once",
        ),
    ),
    R(
        "TRN2",
        "Imported again, only what is new is added.",
        (
            "tests/transcripts/test_importer.py::test_a_history_is_imported_once",
            "tests/cli/test_transcripts.py::test_an_agents_own_folder_is_imported",
        ),
    ),
    R(
        "TRN3",
        "A last line is read when it is complete.",
        ("tests/transcripts/test_importer.py::test_a_line_is_read_when_it_is_complete",),
    ),
    R(
        "TRN4",
        "Lines that cannot be read are skipped, counted and reported; hostile content harms nothing.",
        (
            "tests/transcripts/test_importer.py::test_lines_that_cannot_be_read_are_skipped",
            "tests/transcripts/test_importer.py::test_a_long_damaged_beginning_hides_nothing",
            "tests/transcripts/test_importer.py::test_only_files_are_read",
            "tests/transcripts/test_importer.py::test_a_file_that_fails_does_not_stop_the_others",
            "tests/transcripts/test_importer.py::test_a_source_that_fails_does_not_stop_the_others",
            "tests/cli/test_transcripts.py::test_files_and_folders_can_be_named",
            "tests/formats/test_claude_code_prompts.py::test_tags_of_commands_are_read",
            "tests/formats/test_claude_code_prompts.py::test_other_texts_with_tags_are_prompts",
            "tests/formats/test_claude_code_prompts.py::test_the_time_to_read_tags_grows_linearly",
            "tests/formats/test_claude_code_prompts.py::test_the_time_for_the_results_of_many_sub_agents_grows_linearly",
            "tests/formats/test_claude_code_prompts.py::test_an_impossible_cost_is_no_cost",
        ),
    ),
    R(
        "TRN5",
        "A rewritten, shorter or removed file removes nothing, and adds nothing twice.",
        ("tests/transcripts/test_importer.py::test_a_rewritten_file_is_read_again",),
    ),
    R(
        "TRN6",
        "Secrets in a transcript are redacted in events and in what is stored of the decoder.",
        ("tests/transcripts/test_importer.py::test_secrets_are_redacted",),
    ),
    R(
        "TRN7",
        "A call without a result is open while its agent may work, and ends when the file is abandoned.",
        ("tests/transcripts/test_importer.py::test_a_call_ends_when_its_file_is_abandoned",),
    ),
    R(
        "TRN8",
        "What retention removed is not imported again.",
        (
            "tests/transcripts/test_importer.py::test_retention_is_respected",
            "tests/transcripts/test_importer.py::test_a_rewritten_file_does_not_undo_retention",
        ),
    ),
    R(
        "TRN9",
        "The same history in another folder adds nothing.",
        ("tests/transcripts/test_importer.py::test_a_moved_folder_adds_nothing",),
    ),
    R(
        "TRN10",
        "After kill -9 the next import continues without a gap or a repetition.",
        (
            "tests/cli/test_transcripts.py::test_a_killed_import_continues",
            "tests/transcripts/test_importer.py::test_two_processes_import_the_same_history",
            "tests/transcripts/test_importer.py::test_an_error_while_writing_loses_nothing",
        ),
    ),
    R(
        "TRN11",
        "A history is followed while it grows, also from when its folder exists.",
        ("tests/cli/test_transcripts.py::test_a_history_is_followed_while_it_grows",),
    ),
    R(
        "TRN12",
        "One process follows the histories, serves the web UI and keeps the search index current.",
        ("tests/cli/test_transcripts.py::test_up_serves_what_it_follows",),
    ),
    R(
        "TRN13",
        "What a sub-agent did has the call that started it as its parent, whichever file is read first.",
        ("tests/transcripts/test_importer.py::test_calls_of_a_sub_agent_have_its_call_as_parent",),
    ),
    R(
        "TRN14",
        "The file of a sub-agent that is followed waits for its call.",
        ("tests/transcripts/test_importer.py::test_a_sub_agent_that_is_followed_waits_for_its_call",),
    ),
    R(
        "TRN15",
        "Tokens count once for each response, and incomplete counts are marked.",
        ("tests/transcripts/test_importer.py::test_calls_of_a_sub_agent_have_its_call_as_parent",),
    ),
    R(
        "TRN16",
        "The page follows session files live, and shows what a sub-agent did as the work of the call that started it.",
        (
            "tests/web/test_up.py::test_the_page_follows_two_agents_and_a_sub_agent",
            "tests/web/test_up.py::test_the_work_of_a_sub_agent_passes_axe",
        ),
    ),
    R(
        "TRN17",
        "A call that was lost, because its file did not change for hours, has the result that the file gets later.",
        ("tests/transcripts/test_importer.py::test_the_result_of_a_call_that_was_given_up_is_reported",),
    ),
    R(
        "MRG1",
        "A fork continues its session, has its history once, and counts only its own tokens.",
        (
            "tests/transcripts/test_importer.py::test_a_fork_has_its_history_once",
            "tests/transcripts/test_importer.py::test_sessions_with_the_same_call_id_are_no_forks",
            "tests/transcripts/test_importer.py::test_a_session_does_not_continue_its_fork",
            "tests/transcripts/test_importer.py::test_the_origin_of_an_unmarked_fork_may_be_read_later",
        ),
    ),
    R(
        "MRG2",
        "A compacted or rewound session keeps what happened, and adds no copied line again.",
        ("tests/transcripts/test_importer.py::test_a_compacted_and_rewound_session_keeps_what_happened",),
    ),
    R(
        "MRG3",
        "A live recording and its session file are one session with each call once, in either order.",
        ("tests/transcripts/test_importer.py::test_a_live_recording_and_its_file_are_one_session",),
    ),
    R(
        "MRG4",
        "Two recorders at the same time add nothing twice; a file completes a live text, and ends it only then.",
        (
            "tests/transcripts/test_importer.py::test_the_file_completes_a_message_whose_recorder_was_killed",
            "tests/transcripts/test_importer.py::test_two_recorders_at_once_add_nothing_twice",
            "tests/transcripts/test_importer.py::test_a_file_does_not_end_the_text_that_is_recorded_live",
            "tests/transcripts/test_importer.py::test_a_file_does_not_reveal_a_secret_that_arrives_live",
        ),
    ),
    R(
        "MRG5",
        "A failure that only the session file knows reaches the call.",
        ("tests/transcripts/test_importer.py::test_a_failure_that_only_the_file_knows_reaches_the_call",),
    ),
    R(
        "MRG6",
        "A deleted session is not imported again, unless the user asks for it.",
        (
            "tests/transcripts/test_importer.py::test_a_deleted_session_stays_deleted",
            "tests/transcripts/test_importer.py::test_another_session_of_a_deleted_id_is_still_imported",
            "tests/transcripts/test_importer.py::test_a_deletion_is_respected_while_others_are_followed",
            "tests/transcripts/test_importer.py::test_a_deleted_session_without_an_id_stays_deleted",
            "tests/cli/test_transcripts.py::test_a_deleted_session_is_restored_on_request",
        ),
    ),
    R(
        "MRG7",
        "Prompts and texts without ids that are in a live recording and in the session file are shown once.",
        (
            "tests/transcripts/test_merged_texts.py::test_a_text_without_an_id_is_there_once",
            "tests/transcripts/test_merged_texts.py::test_the_file_has_what_a_killed_recorder_has_not",
            "tests/transcripts/test_merged_texts.py::test_a_live_text_that_continues_differently_is_whole",
            "tests/transcripts/test_merged_texts.py::test_a_prompt_that_was_sent_later_is_another_one",
            "tests/rules/test_merged_texts.py::test_a_text_is_found_where_chunks_start_and_end",
            "tests/rules/test_merged_texts.py::test_very_long_texts_are_compared_only_where_chunks_start",
        ),
    ),
)

AGENT_SESSIONS = (
    R(
        "CDX1",
        "Each call, text and thought of a Codex rollout is one entry, with the exit status of its command.",
        (
            "tests/formats/test_every_format.py::test_the_entries_of_a_case_match_its_golden_file",
            "tests/formats/test_agent_sessions.py::test_the_output_of_codex_tells_how_the_call_ended",
            "tests/formats/test_agent_sessions.py::test_a_command_that_ends_after_its_call_is_reported",
            "tests/formats/test_agent_sessions.py::test_a_script_of_codex_and_the_commands_in_it_are_calls",
            "tests/formats/test_agent_sessions.py::test_a_script_of_codex_in_the_background_is_waited_for",
            "tests/agents/test_real_agents.py::test_the_scripts_of_codex_are_imported_with_their_commands",
            "tests/formats/test_agent_sessions.py::test_a_session_that_was_killed_and_resumed_has_both_turns",
        ),
    ),
    R(
        "CDX2",
        "Copies of a Codex session in a fork, or after a compaction, repeat nothing.",
        (
            "tests/formats/test_agent_sessions.py::test_every_draft_of_a_message_has_a_key",
            "tests/formats/test_agent_sessions.py::test_a_copy_of_a_transcript_adds_nothing",
            "tests/formats/test_agent_sessions.py::test_a_fork_of_a_codex_session_repeats_nothing",
            "tests/formats/test_agent_sessions.py::test_a_compacted_session_has_each_call_once",
            "tests/formats/test_agent_sessions.py::test_a_key_has_a_limited_length",
        ),
    ),
    R(
        "CDX3",
        "The calls and messages of a Codex rollout have the ids of the same session's ACP traffic.",
        (
            "tests/formats/test_agent_sessions.py::test_the_rollout_of_a_wrapped_codex_has_the_ids_of_its_traffic",
            "tests/formats/test_agent_sessions.py::test_calls_have_the_ids_of_the_agents_own_protocol",
            "tests/formats/test_agent_sessions.py::test_a_turn_starts_directly_before_its_prompt",
            "tests/transcripts/test_agent_histories.py::test_a_wrapped_codex_and_its_rollout_are_one_session",
        ),
    ),
    R(
        "CDX4",
        "What a sub-agent of Codex did belongs to the call that started it.",
        (
            "tests/formats/test_agent_sessions.py::test_a_sub_agent_belongs_to_the_call_that_started_it",
            "tests/formats/test_agent_sessions.py::test_a_sub_agent_without_its_session_keeps_its_own_id",
            "tests/formats/test_agent_sessions.py::test_the_answer_of_a_codex_agent_is_on_its_call",
            "tests/transcripts/test_agent_histories.py::test_a_session_and_its_sub_agent_are_imported_once",
            "tests/transcripts/test_agent_histories.py::test_a_rollout_of_a_sub_agent_belongs_to_the_session_that_started_it",
        ),
    ),
    R(
        "CDX5",
        "The usage of a Codex session is that of each response, each counted once.",
        ("tests/formats/test_agent_sessions.py::test_the_usage_is_that_of_each_response",),
    ),
    R(
        "CDX6",
        "The rollouts of Codex are found, and those that cannot be read are reported.",
        (
            "tests/transcripts/test_agent_histories.py::test_codex_keeps_its_sessions_in_its_own_folder",
            "tests/transcripts/test_agent_histories.py::test_a_rollout_of_a_sub_agent_belongs_to_the_session_that_started_it",
        ),
    ),
    R(
        "CDX7",
        "A rollout that Codex compresses stays the same transcript; without the package it is reported, not ignored.",
        (
            "tests/transcripts/test_agent_histories.py::test_a_compressed_rollout_is_read_like_the_plain_one",
            "tests/transcripts/test_agent_histories.py::test_a_compressed_rollout_of_a_sub_agent_belongs_to_its_session",
            "tests/transcripts/test_agent_histories.py::test_a_rollout_that_is_compressed_and_resumed_is_imported_once",
            "tests/transcripts/test_agent_histories.py::test_a_rollout_in_both_forms_is_read_once",
            "tests/transcripts/test_agent_histories.py::test_a_compressed_line_that_is_too_long_is_skipped",
            "tests/transcripts/test_agent_histories.py::test_what_precedes_the_damage_of_a_compressed_rollout_is_read",
            "tests/transcripts/test_agent_histories.py::test_without_the_package_a_compressed_rollout_is_reported",
            "tests/agents/test_real_agents.py::test_a_compressed_session_is_imported_once",
        ),
    ),
    R(
        "GEM1",
        "Each call, text and thought of a Gemini CLI chat is one entry; a failed command has its exit status.",
        (
            "tests/formats/test_every_format.py::test_the_entries_of_a_case_match_its_golden_file",
            "tests/formats/test_agent_sessions.py::test_a_failed_command_of_gemini_has_its_exit_status",
        ),
    ),
    R(
        "GEM2",
        "Messages that a Gemini CLI chat stores again, also in a compressed history, repeat nothing.",
        (
            "tests/formats/test_agent_sessions.py::test_every_draft_of_a_message_has_a_key",
            "tests/formats/test_agent_sessions.py::test_a_copy_of_a_transcript_adds_nothing",
            "tests/formats/test_agent_sessions.py::test_a_compacted_session_has_each_call_once",
            "tests/transcripts/test_agent_histories.py::test_a_long_chat_that_is_stored_again_adds_what_is_new",
        ),
    ),
    R(
        "GEM3",
        "The calls of a Gemini CLI chat have the ids of the agent's ACP traffic.",
        (
            "tests/formats/test_agent_sessions.py::test_calls_have_the_ids_of_the_agents_own_protocol",
            "tests/formats/test_agent_sessions.py::test_a_turn_starts_directly_before_its_prompt",
        ),
    ),
    R(
        "GEM4",
        "What a sub-agent of Gemini CLI did belongs to the call that started it.",
        (
            "tests/formats/test_agent_sessions.py::test_a_sub_agent_belongs_to_the_call_that_started_it",
            "tests/formats/test_agent_sessions.py::test_a_sub_agent_without_its_session_keeps_its_own_id",
            "tests/transcripts/test_agent_histories.py::test_a_session_and_its_sub_agent_are_imported_once",
        ),
    ),
    R(
        "GEM5",
        "The usage of a Gemini CLI chat is that of each response, each counted once.",
        ("tests/formats/test_agent_sessions.py::test_the_usage_is_that_of_each_response",),
    ),
    R(
        "GEM6",
        "The chats of Gemini CLI are found, in lines and in one object, with the folder of their project.",
        (
            "tests/transcripts/test_agent_histories.py::test_gemini_chats_are_found_in_their_projects",
            "tests/transcripts/test_agent_histories.py::test_a_chat_in_one_object_is_read_again_after_each_change",
        ),
    ),
    R(
        "OPC1",
        "Each call, text and thought of an opencode session is one entry, from the database or an export.",
        (
            "tests/formats/test_every_format.py::test_the_entries_of_a_case_match_its_golden_file",
            "tests/formats/test_agent_sessions.py::test_the_export_of_opencode_is_read_like_its_database",
            "tests/transcripts/test_agent_histories.py::test_an_export_of_opencode_is_a_file_of_its_own",
            "tests/formats/test_agent_sessions.py::test_a_call_that_was_not_permitted_is_denied",
            "tests/formats/test_agent_sessions.py::test_a_session_that_was_killed_and_resumed_has_both_turns",
        ),
    ),
    R(
        "OPC2",
        "A fork of an opencode session, and a row that is read again, repeat nothing in one session.",
        (
            "tests/formats/test_agent_sessions.py::test_every_draft_of_a_message_has_a_key",
            "tests/formats/test_agent_sessions.py::test_a_copy_of_a_transcript_adds_nothing",
            "tests/formats/test_agent_sessions.py::test_a_fork_of_an_opencode_session_repeats_nothing",
            "tests/formats/test_agent_sessions.py::test_a_compacted_session_has_each_call_once",
            "tests/transcripts/test_agent_histories.py::test_a_call_that_outlasts_many_others_gets_its_end",
        ),
    ),
    R(
        "OPC3",
        "The calls and messages of an opencode session have the ids of the agent's ACP traffic.",
        (
            "tests/formats/test_agent_sessions.py::test_calls_have_the_ids_of_the_agents_own_protocol",
            "tests/formats/test_agent_sessions.py::test_a_turn_starts_directly_before_its_prompt",
        ),
    ),
    R(
        "OPC4",
        "What a sub-agent of opencode did belongs to the call that started it.",
        (
            "tests/formats/test_agent_sessions.py::test_a_sub_agent_belongs_to_the_call_that_started_it",
            "tests/formats/test_agent_sessions.py::test_a_sub_agent_without_its_session_keeps_its_own_id",
            "tests/transcripts/test_agent_histories.py::test_a_session_and_its_sub_agent_are_imported_once",
        ),
    ),
    R(
        "OPC5",
        "The usage of an opencode session is that of each response, with the cost that opencode states.",
        (
            "tests/formats/test_agent_sessions.py::test_the_usage_is_that_of_each_response",
            "tests/formats/test_agent_sessions.py::test_opencode_states_its_costs",
        ),
    ),
    R(
        "OPC6",
        "The database of a running opencode is read without writing to it, and only what changed.",
        (
            "tests/transcripts/test_agent_histories.py::test_the_database_of_opencode_is_found",
            "tests/transcripts/test_agent_histories.py::test_a_running_opencode_is_read_while_it_writes",
            "tests/transcripts/test_agent_histories.py::test_reading_leaves_no_files_behind",
            "tests/transcripts/test_agent_histories.py::test_a_message_of_the_agent_follows_its_parts",
            "tests/transcripts/test_agent_histories.py::test_a_large_session_is_read_in_pieces",
            "tests/transcripts/test_agent_histories.py::test_a_session_that_was_deleted_is_gone",
            "tests/transcripts/test_agent_histories.py::test_rows_that_cannot_be_read_are_skipped",
            "tests/transcripts/test_agent_histories.py::test_rows_with_an_older_time_are_read",
        ),
    ),
    R(
        "OPC7",
        "A fork of an opencode session continues its origin, whichever of both is read first.",
        (
            "tests/transcripts/test_agent_histories.py::test_a_fork_of_opencode_names_its_origin",
            "tests/transcripts/test_agent_histories.py::test_messages_that_are_older_than_their_session_make_no_fork",
            "tests/transcripts/test_agent_histories.py::test_the_origin_of_a_fork_is_found_when_its_messages_are_copied",
            "tests/transcripts/test_agent_histories.py::test_a_fork_of_opencode_continues_an_origin_that_is_read_later",
            "tests/agents/test_real_agents.py::test_an_origin_that_is_used_after_its_fork_continues_nothing",
        ),
    ),
    R(
        "OPC8",
        "Sessions that opencode stored in files, before it had a database, are read like those of the database.",
        (
            "tests/transcripts/test_agent_histories.py::test_sessions_of_opencode_in_files_are_imported_like_those_of_its_database",
            "tests/transcripts/test_agent_histories.py::test_sessions_in_files_that_the_database_has_are_not_read",
            "tests/transcripts/test_agent_histories.py::test_files_of_opencode_that_cannot_be_read_are_skipped",
        ),
    ),
)

SEARCH = (
    R(
        "SRCH1",
        "Messages, thoughts, calls, requests and titles are found by their words; those of sub-agents are marked.",
        (
            "tests/api/test_search.py::test_an_entry_is_found_by_its_words",
            "tests/api/test_search.py::test_the_arguments_of_a_request_are_found_once",
            "tests/api/test_search.py::test_the_entries_of_a_sub_agent_are_marked",
            "tests/rules/test_search_words.py::test_queries_of_the_engines_have_the_same_words",
        ),
    ),
    R(
        "SRCH2",
        "Any query is ordinary text, except pairs of quotes; paths, identifiers and unspaced text are found.",
        (
            "tests/api/test_search.py::test_an_entry_is_found_by_its_words",
            "tests/api/test_search.py::test_a_query_without_letters_finds_nothing",
            "tests/api/test_search.py::test_any_query_is_answered",
            "tests/rules/test_search_words.py::test_a_text_is_split_into_words",
            "tests/rules/test_search_words.py::test_words_cannot_end_the_quotes_of_a_query_language",
            "tests/rules/test_search_words.py::test_a_part_of_a_text_between_spaces_is_found_in_it",
            "tests/rules/test_search_words.py::test_a_query_is_split_into_phrases",
        ),
    ),
    R(
        "SRCH3",
        "Highlights are ranges of the stored text in UTF-16 code units, never HTML.",
        (
            "tests/api/test_search.py::test_highlights_are_ranges_of_the_stored_text",
            "tests/rules/test_search_words.py::test_an_excerpt_has_most_of_the_words",
            "tests/rules/test_search_words.py::test_parts_of_an_excerpt_count_as_javascript_does",
            "tests/rules/test_search_words.py::test_a_part_of_a_text_between_spaces_is_found_in_it",
        ),
    ),
    R(
        "SRCH4",
        "The index follows from the log, whichever process or version wrote it; a search adds what is missing.",
        (
            "tests/api/test_search.py::test_a_text_is_found_while_it_grows_and_after_its_end",
            "tests/api/test_search.py::test_what_an_agent_reports_after_the_end_is_found",
            "tests/api/test_search.py::test_events_of_another_process_are_found",
            "tests/api/test_search.py::test_two_processes_index_the_same_rows",
            "tests/api/test_search.py::test_searches_wait_for_the_index_at_the_same_time",
            "tests/api/test_search.py::test_a_long_session_is_added_in_parts",
            "tests/api/test_search.py::test_another_version_of_the_words_is_replaced",
            "tests/api/test_search.py::test_an_index_whose_entries_were_replaced_is_derived_again",
        ),
    ),
    R(
        "SRCH5",
        "The beginning of a large text is found, also of a blob; a long input leaves room for the output.",
        (
            "tests/api/test_search.py::test_the_beginning_of_a_large_output_is_found",
            "tests/rules/test_search_words.py::test_only_so_many_places_of_a_word_are_stored",
            "tests/rules/test_search_words.py::test_a_long_input_leaves_room_for_the_output",
        ),
    ),
    R(
        "SRCH6",
        "Filters by session, project, tool, state and time narrow a search.",
        (
            "tests/api/test_search.py::test_filters_narrow_a_search",
            "tests/rules/test_search_words.py::test_the_marks_of_a_range_are_those_of_its_times",
        ),
    ),
    R(
        "SRCH7",
        "What people wrote and short texts come first; pages give every result once.",
        (
            "tests/api/test_search.py::test_what_people_wrote_and_short_texts_come_first",
            "tests/api/test_search.py::test_pages_give_every_result_once",
            "tests/rules/test_search_words.py::test_what_people_wrote_has_the_highest_rank",
        ),
    ),
    R(
        "SRCH8",
        "Only the newest 10,000 matches are put in order, and the answer says if there are more.",
        ("tests/api/test_search.py::test_only_the_newest_matches_are_compared",),
    ),
    R(
        "SRCH9",
        "Sessions that the caller may not read change no result, page, limit or note of a search.",
        (
            "tests/api/test_search.py::test_hidden_sessions_change_nothing",
            "tests/api/test_search.py::test_each_session_is_checked_once",
        ),
    ),
    R(
        "SRCH10",
        "Deletion and retention remove words from the index at once.",
        (
            "tests/api/test_search.py::test_a_deleted_session_leaves_nothing_in_the_index",
            "tests/api/test_search.py::test_retention_removes_entries_from_the_index",
        ),
    ),
    R(
        "SRCH11",
        "`verify` derives the index again and compares it.",
        (
            "tests/api/test_search.py::test_verify_compares_the_index_with_the_log",
            "tests/api/test_search.py::test_verify_finds_other_words",
        ),
    ),
    R(
        "SRCH12",
        "A ledger that cannot be written is searched as far as it was indexed, and the answer says so.",
        ("tests/api/test_search.py::test_a_ledger_that_cannot_be_written_is_searched_as_it_is",),
    ),
    R(
        "SRCH13",
        "A search gives the same in this process, behind a server, without an event loop and on the command line.",
        (
            "tests/api/test_search.py::test_every_ledger_searches_alike",
            "tests/cli/test_search.py::test_results_show_session_tool_state_and_excerpt",
            "tests/cli/test_search.py::test_json_has_the_answer_of_the_server",
            "tests/cli/test_search.py::test_words_and_filters_are_arguments",
            "tests/cli/test_search.py::test_a_search_without_results_says_why",
        ),
    ),
    R(
        "SRCH14",
        "A page of the web UI shows results as text and leads to the entry in its session.",
        (
            "tests/web/test_search.py::test_a_result_leads_to_its_entry",
            "tests/web/test_search.py::test_search_results_come_in_pages_and_pass_axe",
            "tests/web/test_search.py::test_a_search_that_is_refused_shows_why",
        ),
    ),
)

AGENTS = (
    R(
        "AGT1",
        "Histories of Claude Code, Codex, Gemini CLI and opencode are imported as they happened; again adds nothing.",
        ("tests/agents/test_real_agents.py::test_a_run_is_imported_as_it_was",),
    ),
    R(
        "AGT2",
        "Calls, texts and usage of a sub-agent belong to the call that started it.",
        ("tests/agents/test_real_agents.py::test_sub_agents_are_imported_with_the_calls_that_started_them",),
    ),
    R(
        "AGT3",
        "A resumed, forked or compacted session of an agent has each call and each response once.",
        (
            "tests/agents/test_real_agents.py::test_a_resumed_session_is_one_session",
            "tests/agents/test_real_agents.py::test_a_fork_continues_its_origin",
            "tests/agents/test_real_agents.py::test_a_compacted_session_keeps_its_calls",
        ),
    ),
    R(
        "AGT4",
        "An agent that was killed leaves what it did until then, and no call that succeeded without an end.",
        ("tests/agents/test_real_agents.py::test_a_killed_agent_leaves_calls_that_never_ended",),
    ),
    R(
        "AGT5",
        "What `wrap` recorded and what the agent's history has is one session with each call once, in either order.",
        (
            "tests/agents/test_real_agents.py::test_what_wrap_recorded_and_its_history_are_one_session",
            "tests/agents/test_real_agents.py::test_an_agent_is_wrapped_and_followed_at_once",
            "tests/agents/test_real_agents.py::test_a_wrapper_that_is_killed_leaves_nothing_twice",
            "tests/agents/test_real_agents.py::test_recorded_traffic_adds_nothing_to_a_history",
            "tests/agents/test_real_agents.py::test_a_session_from_a_history_goes_on_under_wrap",
        ),
    ),
    R(
        "AGT6",
        "`callslip watch` and `callslip up` follow agents while they run, several at once.",
        (
            "tests/agents/test_real_agents.py::test_a_running_agent_is_followed",
            "tests/agents/test_real_agents.py::test_two_agents_at_once_are_followed",
        ),
    ),
)

HOOKS = (
    R(
        "HK1",
        "A hook stores a message without waiting; a server, or the next command, imports it once, also after kills.",
        (
            "tests/hooks/test_script.py::test_a_message_is_stored_and_not_waited_for",
            "tests/hooks/test_script.py::test_a_folder_with_a_long_path_works",
            "tests/hooks/test_receiver.py::test_a_file_that_was_not_deleted_adds_nothing",
            "tests/hooks/test_server.py::test_a_killed_server_delays_no_agent_and_loses_nothing",
            "tests/hooks/test_server.py::test_messages_under_kills_are_recorded_once",
            "tests/hooks/test_server.py::test_a_socket_below_a_long_path_is_found_by_the_script",
            "tests/hooks/test_server.py::test_a_command_without_messages_opens_nothing",
            "tests/agents/test_hooked_agents.py::test_a_run_without_a_server_is_recorded_by_the_next_command",
            "tests/agents/test_hooked_agents.py::test_a_killed_server_leaves_the_agent_working",
        ),
    ),
    R(
        "HK2",
        "A hook that cannot work ends in silence: Callslip is gone, the folder is not private, sizes are exceeded.",
        (
            "tests/hooks/test_script.py::test_what_cannot_work_ends_in_silence",
            "tests/hooks/test_script.py::test_a_folder_that_others_can_use_is_not_used",
            "tests/hooks/test_script.py::test_a_link_in_place_of_the_spool_is_not_followed",
            "tests/hooks/test_script.py::test_sizes_are_limited",
            "tests/hooks/test_script.py::test_the_command_in_the_settings_survives_without_callslip",
            "tests/hooks/test_server.py::test_what_is_no_socket_is_not_replaced",
        ),
    ),
    R(
        "HK3",
        "If `wrap` runs an agent, its hook does nothing, so one of the two asks.",
        (
            "tests/hooks/test_script.py::test_a_wrapped_agent_is_not_recorded_twice",
            "tests/agents/test_hooked_agents.py::test_under_wrap_only_the_client_is_asked",
        ),
    ),
    R(
        "HK4",
        "Without a server or an answer in time a hook prints nothing, and the agent asks or decides by itself.",
        (
            "tests/hooks/test_script.py::test_a_request_without_a_server_has_no_answer",
            "tests/hooks/test_server.py::test_no_answer_in_time_leaves_it_to_the_agent",
            "tests/hooks/test_server.py::test_a_killed_server_delays_no_agent_and_loses_nothing",
            "tests/agents/test_hooked_agents.py::test_without_an_answer_the_agent_decides",
            "tests/agents/test_hooked_agents.py::test_a_run_without_a_terminal_refuses",
            "tests/agents/test_hooked_agents.py::test_opencode_run_refuses_by_itself",
        ),
    ),
    R(
        "HK5",
        "What a hook and the session file both tell is recorded once; the hook adds what the file never tells.",
        (
            "tests/hooks/test_receiver.py::test_each_thing_is_recorded_once",
            "tests/hooks/test_receiver.py::test_a_call_is_recorded_from_the_hook_if_the_file_never_tells_it",
            "tests/hooks/test_receiver.py::test_a_late_start_changes_nothing_that_the_file_told",
            "tests/hooks/test_receiver.py::test_a_session_without_a_file_has_the_texts_of_the_hook",
            "tests/hooks/test_receiver.py::test_messages_of_a_deleted_session_are_left_out",
            "tests/agents/test_hooked_agents.py::test_a_run_with_the_hook_is_recorded_once",
            "tests/agents/test_hooked_agents.py::test_a_run_is_answered_in_the_inbox_and_recorded_once",
        ),
    ),
    R(
        "HK6",
        "Stored messages are not trusted: links, pipes, huge and broken files, foreign paths and times do no harm.",
        (
            "tests/hooks/test_receiver.py::test_hostile_files_are_left_out_and_affect_no_other",
            "tests/hooks/test_receiver.py::test_a_folder_in_place_of_a_file_holds_nothing_up",
            "tests/hooks/test_receiver.py::test_only_files_in_the_history_of_the_agent_are_read",
            "tests/hooks/test_receiver.py::test_a_time_of_a_message_is_plausible",
        ),
    ),
    R(
        "HK7",
        "Neither a stored message nor the socket can answer a request, list anything or write a rule.",
        (
            "tests/hooks/test_receiver.py::test_a_stored_message_never_asks_or_answers",
            "tests/hooks/test_receiver.py::test_no_stored_message_answers_a_request",
            "tests/hooks/test_server.py::test_the_socket_offers_nothing_but_to_ask",
            "tests/hooks/test_server.py::test_each_request_waits_for_its_own_answer",
        ),
    ),
    R(
        "HK8",
        "A request without an id of its call is about the oldest equal call that has not asked, else the only one.",
        (
            "tests/hooks/test_receiver.py::test_a_request_is_about_the_call_that_asks",
            "tests/hooks/test_receiver.py::test_a_request_with_other_arguments_is_about_the_only_call",
        ),
    ),
    R(
        "HK9",
        "A request has the options that its agent can honour, and an answer reaches the agent in its own form.",
        (
            "tests/hooks/test_receiver.py::test_a_request_has_what_the_agent_can_honour",
            "tests/hooks/test_server.py::test_an_answer_from_the_inbox_reaches_each_agent",
            "tests/agents/test_hooked_agents.py::test_a_run_is_answered_in_the_inbox_and_recorded_once",
            "tests/agents/test_hooked_agents.py::test_a_run_is_answered_on_postgresql",
            "tests/agents/test_hooked_agents.py::test_a_question_or_a_plan_is_answered_in_the_inbox",
        ),
    ),
    R(
        "HK10",
        "A call that the hook of Gemini CLI asked about is the one in its chat file, also among equal calls.",
        ("tests/hooks/test_receiver.py::test_calls_without_ids_get_those_of_the_session_file",),
    ),
    R(
        "HK11",
        "The first answer wins: one in the terminal releases the request, which claims neither approval nor denial.",
        (
            "tests/hooks/test_receiver.py::test_a_released_request_claims_nothing",
            "tests/hooks/test_receiver.py::test_requests_of_a_killed_server_are_released",
            "tests/hooks/test_server.py::test_the_terminal_may_answer_first",
            "tests/hooks/test_server.py::test_both_answers_at_once_leave_one",
            "tests/agents/test_hooked_agents.py::test_the_terminal_may_answer_first",
        ),
    ),
    R(
        "HK14",
        "No request stays in the inbox whose answer nothing waits for: its agent was killed, or recording it failed.",
        (
            "tests/hooks/test_server.py::test_an_agent_that_is_gone_leaves_no_request_behind",
            "tests/hooks/test_server.py::test_a_request_that_fails_is_left_to_the_agent",
            "tests/hooks/test_server.py::test_a_bug_in_a_reader_stops_no_hook",
            "tests/agents/test_hooked_agents.py::test_a_killed_agent_leaves_no_request_behind",
        ),
    ),
    R(
        "HK12",
        "One process serves the hooks of a ledger on a machine; another one takes over when it is gone.",
        ("tests/hooks/test_server.py::test_a_second_server_waits_for_the_first",),
    ),
    R(
        "HK13",
        "`callslip doctor` reports the folder of the hooks, its server and the messages that wait.",
        ("tests/hooks/test_doctor.py::test_the_doctor_reports_the_folder_of_the_hooks",),
    ),
)

HOOK_SETTINGS = (
    R(
        "HI1",
        "`callslip hook install` shows a diff, asks, keeps a copy of the file, and adds one entry for each event.",
        (
            "tests/hooks/test_entries.py::test_each_event_gets_one_entry",
            "tests/cli/test_hook.py::test_an_installation_is_shown_and_kept_as_a_copy",
            "tests/cli/test_hook.py::test_nothing_is_written_without_a_confirmation",
            "tests/cli/test_hook.py::test_a_terminal_is_asked",
            "tests/cli/test_hook.py::test_settings_stay_if_no_copy_can_be_kept",
            "tests/cli/test_hook.py::test_results_as_json",
        ),
    ),
    R(
        "HI2",
        "A second installation changes nothing, and entries of others keep their places.",
        (
            "tests/hooks/test_entries.py::test_a_second_installation_changes_nothing",
            "tests/hooks/test_entries.py::test_entries_of_others_keep_their_places",
        ),
    ),
    R(
        "HI3",
        "After `callslip hook uninstall` settings are as before, byte for byte, with comments and all later edits.",
        (
            "tests/hooks/test_entries.py::test_an_installation_and_its_removal_leave_no_trace",
            "tests/hooks/test_entries.py::test_edits_by_hand_survive",
            "tests/cli/test_hook.py::test_edits_by_hand_survive",
            "tests/cli/test_hook.py::test_empty_objects_and_lists_are_left_as_they_were",
            "tests/cli/test_hook.py::test_a_file_that_was_created_is_removed_again",
        ),
    ),
    R(
        "HI4",
        "Settings are replaced as a whole, keep links and permissions, and never lose a change of another program.",
        (
            "tests/hooks/test_settings_file.py::test_a_change_of_another_program_is_not_lost",
            "tests/hooks/test_settings_file.py::test_a_link_stays_a_link",
            "tests/hooks/test_settings_file.py::test_permissions_stay",
            "tests/hooks/test_settings_file.py::test_a_byte_order_mark_and_line_ends_stay",
            "tests/hooks/test_settings_file.py::test_a_write_that_fails_leaves_the_old_file",
            "tests/hooks/test_settings_file.py::test_a_read_only_file_is_refused",
        ),
    ),
    R(
        "HI5",
        "If Callslip is gone its hooks exit with success and without output, and the agent works.",
        (
            "tests/hooks/test_command.py::test_a_command_is_silent_if_callslip_is_gone",
            "tests/agents/test_hooks.py::test_the_agent_works_if_callslip_is_gone",
        ),
    ),
    R(
        "HI6",
        "`callslip hook status` says what is true: another ledger, not trusted, switched off, incomplete, gone.",
        (
            "tests/cli/test_hook.py::test_status_tells_another_ledger",
            "tests/cli/test_hook.py::test_status_tells_whether_codex_trusts_the_hooks",
            "tests/cli/test_hook.py::test_status_tells_that_the_agent_switched_hooks_off",
            "tests/cli/test_hook.py::test_status_tells_missing_events",
            "tests/cli/test_hook.py::test_status_tells_what_is_gone",
            "tests/cli/test_hook.py::test_status_tells_approvals",
            "tests/cli/test_hook.py::test_status_tells_how_to_install_them_as_they_are",
            "tests/cli/test_hook.py::test_status_tells_a_plugin_of_another_version",
            "tests/agents/test_hooks.py::test_the_trust_of_codex_is_read_as_codex_reads_it",
        ),
    ),
    R(
        "HI7",
        "Each agent runs the installed hooks, and a file that it would not read is refused instead of changed.",
        (
            "tests/agents/test_hooks.py::test_the_agent_runs_the_installed_hooks",
            "tests/agents/test_hooks.py::test_the_agent_reads_what_is_not_refused",
            "tests/hooks/test_entries.py::test_a_file_that_the_agent_does_not_read_is_refused",
        ),
    ),
    R(
        "HI8",
        "While no server runs, `hook status` and `doctor` say what waits for it; without a ledger each command does.",
        ("tests/cli/test_hook.py::test_status_tells_what_waits_for_a_server",),
    ),
)

NOTIFICATIONS = (
    R(
        "NTF1",
        "A pending request is sent to each webhook once, with its link, and signed if there is a secret.",
        (
            "tests/notify/test_notify.py::test_a_request_is_sent_once_without_its_command",
            "tests/api/test_notices.py::test_requests_that_are_known_are_not_read_again",
            "tests/notify/test_notify.py::test_the_id_of_a_request_may_have_any_characters",
            "tests/notify/test_notify.py::test_the_guide_has_valid_settings_and_a_check_of_signatures",
        ),
    ),
    R(
        "NTF2",
        "Messages have no title, command or project unless the settings enable it; Slack gets them as plain text.",
        (
            "tests/notify/test_notify.py::test_texts_are_sent_only_if_enabled",
            "tests/notify/test_notify.py::test_a_request_is_sent_once_without_its_command",
        ),
    ),
    R(
        "NTF3",
        "Questions, finished and idle agents are found by the state of the session, after a delay, if they are new.",
        (
            "tests/notify/test_notify.py::test_questions_and_the_ends_of_turns_are_sent",
            "tests/notify/test_notify.py::test_an_old_history_and_answered_requests_are_not_sent",
            "tests/api/test_notices.py::test_a_label_of_an_old_session_is_no_news",
        ),
    ),
    R(
        "NTF4",
        "Several servers of one ledger send each message once; if one dies, another continues.",
        (
            "tests/notify/test_notify.py::test_several_servers_send_each_message_once",
            "tests/api/test_notices.py::test_one_of_many_claims_a_notice",
            "tests/api/test_notices.py::test_a_value_is_replaced_only_as_it_was_read",
            "tests/notify/test_notify.py::test_another_server_continues_for_one_that_died",
            "tests/notify/test_notify.py::test_what_was_sent_is_not_sent_again_if_the_ledger_fails",
            "tests/notify/test_notify.py::test_a_request_that_waits_for_weeks_is_sent_once",
        ),
    ),
    R(
        "NTF5",
        "A failed delivery is repeated with the same id as long as it applies, and reported once, without the URL.",
        (
            "tests/notify/test_notify.py::test_failures_are_retried_and_reported_once",
            "tests/notify/test_notify.py::test_an_answered_request_is_not_retried",
        ),
    ),
    R(
        "NTF6",
        "A slow receiver delays neither writes nor other receivers, and its queue and answers have limits.",
        (
            "tests/notify/test_notify.py::test_a_slow_receiver_delays_no_write_and_no_other_receiver",
            "tests/notify/test_notify.py::test_an_answer_has_a_limit_in_time_and_size",
            "tests/notify/test_notify.py::test_a_name_server_that_does_not_answer_holds_up_no_other_receiver",
            "tests/notify/test_notify.py::test_of_several_addresses_one_that_does_not_answer_is_left_out",
        ),
    ),
    R(
        "NTF7",
        "Webhooks reach public and listed addresses only, as those of the connection, and follow no redirect.",
        (
            "tests/notify/test_notify.py::test_only_public_and_listed_addresses_are_reached",
            "tests/notify/test_notify.py::test_a_name_of_a_private_address_is_not_reached",
            "tests/notify/test_notify.py::test_redirects_are_not_followed",
            "tests/notify/test_notify.py::test_certificates_are_checked",
        ),
    ),
    R(
        "NTF8",
        "Receivers come only from the settings file, which is refused if it is wrong or if others can change it.",
        (
            "tests/notify/test_notify.py::test_wrong_settings_are_refused",
            "tests/notify/test_notify.py::test_a_file_that_others_can_change_is_refused",
            "tests/notify/test_notify.py::test_a_server_sends_by_its_file",
        ),
    ),
    R(
        "NTF9",
        "`callslip notify test` sends a message to each webhook and reports the results.",
        ("tests/notify/test_notify.py::test_the_test_command_reports_each_receiver",),
    ),
    R(
        "NTF10",
        "A link in a message opens the page, keeps its place through a sign-in, and answers nothing.",
        (
            "tests/notify/test_notify.py::test_a_link_opens_the_page_and_answers_nothing",
            "tests/web/test_notifications.py::test_a_code_in_the_address_signs_a_phone_in",
        ),
    ),
    R(
        "NTF11",
        "The title and the icon of the page show that requests are pending.",
        ("tests/web/test_notifications.py::test_the_title_and_the_icon_show_pending_requests",),
    ),
    R(
        "NTF12",
        "One of several tabs shows a notification of the browser for a new request, a finished or an idle agent, "
        "until it is answered or works again.",
        (
            "tests/web/test_notifications.py::test_one_of_several_tabs_notifies_the_user",
            "tests/web/test_notifications.py::test_the_browser_notifies_of_what_is_new_and_lasts",
            "tests/web/test_notifications.py::test_a_notification_of_an_agent_ends_when_it_works_again",
        ),
    ),
)

PHONES = (
    R(
        "PHN1",
        "A sign-in code is exchanged once, also by many at the same time, for a token with few rights and an end.",
        (
            "tests/cli/test_phone.py::test_a_code_is_exchanged_once_for_a_token_with_an_end",
            "tests/cli/test_phone.py::test_a_code_that_many_present_at_once_gives_one_token",
        ),
    ),
    R(
        "PHN2",
        "A sign-in code is no token; it ends after two minutes, or when it is revoked, and is listed until then.",
        (
            "tests/cli/test_phone.py::test_a_code_is_no_token_and_ends_by_time_or_revocation",
            "tests/cli/test_phone.py::test_a_code_from_the_command_line_is_listed_and_revoked",
        ),
    ),
    R(
        "PHN3",
        "Wrong sign-in codes are limited for each client, and other origins may not try any.",
        (
            "tests/cli/test_phone.py::test_guesses_are_limited",
            "tests/cli/test_phone.py::test_the_limit_remembers_few_clients",
        ),
    ),
    R(
        "PHN4",
        "The terminal shows a QR code that others can read, and a key shows a new one, which revokes the one before.",
        (
            "tests/cli/test_phone.py::test_a_drawn_code_is_read_by_another_implementation",
            "tests/cli/test_phone.py::test_a_key_shows_a_new_code_on_the_terminal",
        ),
    ),
    R(
        "PHN5",
        "`--lan` listens on one address of the network, warns without TLS, and answers to no other name.",
        (
            "tests/cli/test_phone.py::test_a_lan_server_answers_at_its_address_and_no_other_name",
            "tests/cli/test_phone.py::test_a_public_url_is_accepted_as_a_host",
        ),
    ),
    R(
        "PHN6",
        "With a certificate the network gets HTTPS only, with secure cookies, and this machine keeps HTTP.",
        (
            "tests/cli/test_phone.py::test_tls_is_for_the_network",
            "tests/cli/test_phone.py::test_wrong_options_are_refused",
        ),
    ),
    R(
        "PHN7",
        "A phone signs in by the code in the address, which leaves the address, and answers under its own name.",
        ("tests/web/test_notifications.py::test_a_code_in_the_address_signs_a_phone_in",),
    ),
    R(
        "PHN8",
        "The inbox fits 380 px in both themes, with buttons for fingers.",
        ("tests/web/test_notifications.py::test_the_inbox_fits_a_phone",),
    ),
)

RULES = (
    R(
        "RUL1",
        "Among saved rules deny beats ask beats allow, whatever their order, and a policy file beats them.",
        (
            "tests/rules/test_saved_rules.py::test_deny_beats_ask_beats_allow_in_any_order",
            "tests/api/test_rules.py::test_the_policy_file_beats_saved_rules",
            "tests/wrap/test_approvals.py::test_saved_rules_answer_held_requests",
        ),
    ),
    R(
        "RUL2",
        "No way around a saved rule is allowed, and ordinary commands are, in every scope and lifetime.",
        (
            "tests/rules/test_saved_rules.py::test_no_way_around_a_saved_rule_is_allowed",
            "tests/rules/test_saved_rules.py::test_ordinary_commands_are_allowed_by_saved_rules",
            "tests/rules/test_saved_rules.py::test_a_command_that_matches_only_as_a_text_asks_in_any_order",
            "tests/rules/test_saved_rules.py::test_an_mcp_tool_is_allowed_only_by_its_full_name",
            "tests/rules/test_saved_rules.py::test_a_call_that_is_not_stored_completely_is_not_allowed",
            "tests/api/test_rules.py::test_the_corpora_are_decided_alike_in_every_scope_and_lifetime",
            "tests/api/test_rules.py::test_a_secret_in_a_call_leaves_it_to_a_person",
        ),
    ),
    R(
        "RUL3",
        "Only a setting lets a chain of commands pass, when each of them is allowed by itself.",
        (
            "tests/rules/test_saved_rules.py::test_a_setting_allows_a_chain_of_allowed_commands",
            "tests/rules/test_saved_rules.py::test_other_chains_are_not_allowed",
            "tests/rules/test_saved_rules.py::test_the_parts_of_a_chain_are_known",
            "tests/api/test_rules.py::test_the_setting_for_chains",
        ),
    ),
    R(
        "RUL4",
        "A rule is valid in its scope and for its lifetime. The one use of a rule is in the transaction of its answer.",
        (
            "tests/api/test_rules.py::test_a_rule_is_valid_in_its_scope",
            "tests/api/test_rules.py::test_a_rule_for_one_use_answers_one_request",
            "tests/api/test_rules.py::test_a_revoked_rule_answers_nothing",
            "tests/api/test_rules.py::test_a_rule_ends_after_an_hour_by_the_clock_of_the_database",
            "tests/api/test_rules.py::test_rules_are_deleted_with_their_session",
            "tests/rules/test_saved_rules.py::test_a_rule_for_one_use_is_used_last",
        ),
    ),
    R(
        "RUL5",
        "Calls that touch Callslip's files, its command line or agents' settings always need a person.",
        (
            "tests/rules/test_saved_rules.py::test_a_command_about_files_of_callslip_always_needs_a_person",
            "tests/rules/test_saved_rules.py::test_a_tool_call_about_files_of_callslip_always_needs_a_person",
            "tests/rules/test_saved_rules.py::test_other_calls_are_not_protected",
            "tests/api/test_rules.py::test_a_proposal_for_a_protected_call_says_so",
            "tests/wrap/test_policy.py::test_a_policy_does_not_allow_calls_about_callslip",
        ),
    ),
    R(
        "RUL6",
        "A saved rule answers requests where that reaches the agent, for this call only, and the answer names it.",
        (
            "tests/api/test_rules.py::test_a_rule_answers_a_request_and_is_named",
            "tests/api/test_rules.py::test_a_rule_answers_own_calls_commands_and_posted_requests",
            "tests/api/test_rules.py::test_a_request_that_is_answered_elsewhere_is_left_alone",
            "tests/api/test_rules.py::test_a_posted_request_does_not_start_the_call_of_another_program",
            "tests/api/test_rules.py::test_only_the_option_for_this_call_is_chosen",
            "tests/api/test_rules.py::test_the_first_answer_wins",
            "tests/wrap/test_approvals.py::test_saved_rules_answer_held_requests",
        ),
    ),
    R(
        "RUL7",
        "Saved rules are checked, limited in number, found by prefix, revoked, copied with the database and verified.",
        (
            "tests/api/test_rules.py::test_an_invalid_rule_is_refused",
            "tests/api/test_rules.py::test_rules_are_found_by_prefix_and_revoked",
            "tests/api/test_rules.py::test_the_number_of_rules_is_limited",
            "tests/api/test_rules.py::test_verify_reports_a_rule_that_cannot_be_used",
            "tests/store/test_copy.py::test_a_copy_continues_after_the_source_has_changed",
        ),
    ),
    R(
        "RUL8",
        "A proposed rule is narrow and matches its request; a preview says which of the newest calls match.",
        (
            "tests/api/test_rules.py::test_a_proposal_is_narrow_and_matches",
            "tests/api/test_rules.py::test_a_proposal_for_files_names_the_project",
            "tests/api/test_rules.py::test_a_proposal_for_a_protected_call_says_so",
            "tests/api/test_rules.py::test_a_preview_is_bounded_and_newest_first",
        ),
    ),
    R(
        "RUL9",
        "A test of rules runs nothing, and returns the decision with the rules that were looked at.",
        ("tests/api/test_rules.py::test_a_test_of_rules_runs_nothing",),
    ),
    R(
        "RUL10",
        "Rules need the right to approve: in their session, or in all sessions if they concern more than one.",
        (
            "tests/http/test_access_matrix.py::test_every_route_with_every_credential",
            "tests/http/test_access_matrix.py::test_only_a_caller_with_all_sessions_writes_rules_for_more_than_one",
            "tests/http/test_http.py::test_an_unknown_caller_learns_nothing_about_what_a_route_takes",
        ),
    ),
    R(
        "RUL11",
        "`callslip rules` lists, adds with a preview, tests and revokes rules; where a server runs it needs a token.",
        (
            "tests/cli/test_rules.py::test_rules_are_added_listed_tested_and_revoked",
            "tests/cli/test_rules.py::test_a_wrong_rule_is_refused",
            "tests/cli/test_rules.py::test_a_server_takes_rules_only_with_a_token",
        ),
    ),
    R(
        "RUL12",
        "An agent's credential, environment and folder let it neither answer nor write a rule (HTTP, MCP, CLI).",
        (
            "tests/cli/test_rules.py::test_a_program_that_an_agent_started_cannot_answer_or_write_rules",
            "tests/http/test_access_matrix.py::test_every_route_with_every_credential",
            "tests/mcp/test_mcp.py::test_no_tool_approves",
        ),
    ),
    R(
        "RUL13",
        "Several answers count each only for a request that is pending and as it was shown.",
        ("tests/api/test_rules.py::test_several_answers_apply_to_what_was_shown",),
    ),
    R(
        "RUL14",
        "A page can list the policy file with its lines beside the saved rules, and ask what its user may do.",
        (
            "tests/http/test_access.py::test_the_policy_file_is_listed_for_those_who_may_approve_everywhere",
            "tests/http/test_access.py::test_a_page_asks_what_its_user_may_do",
        ),
    ),
    R(
        "RUL15",
        "A server has a policy file and the setting for chains; its rules are listed and tested through it.",
        ("tests/cli/test_rules.py::test_a_server_has_a_policy_file",),
    ),
)

INBOX = (
    R(
        "INB1",
        "The page lists the policy file above saved rules. A rule is added after its matches were shown, and revoked.",
        (
            "tests/web/test_rules_page.py::test_rules_are_added_tested_and_revoked",
            "tests/web/test_rules_page.py::test_the_policy_file_is_above_saved_rules",
        ),
    ),
    R(
        "INB2",
        "Always allow... shows a rule and what it would have matched; it is saved only with an approval that counts.",
        (
            "tests/web/test_rules_page.py::test_a_rule_is_saved_with_an_approval",
            "tests/web/test_rules_page.py::test_no_rule_is_saved_if_the_approval_does_not_count",
        ),
    ),
    R(
        "INB3",
        "A request shows its full command, the reason and what came before; the inbox lists what was decided recently.",
        (
            "tests/web/test_answers.py::test_a_request_shows_why_and_what_came_before",
            "tests/web/test_answers.py::test_requests_are_answered_with_the_agents_options",
            "tests/web/test_answers.py::test_request_counts_down_and_shows_an_answer_from_elsewhere",
            "tests/api/test_approvals.py::test_answered_requests_are_listed_with_the_newest_first",
        ),
    ),
    R(
        "INB4",
        "Questions and plans are readable, and buttons that an agent cannot honour are hidden.",
        (
            "tests/web/test_answers.py::test_questions_and_plans_are_readable",
            "tests/api/test_approvals.py::test_an_offer_says_which_answers_the_agent_can_honour",
        ),
    ),
    R(
        "INB5",
        "Several requests are shown in full before they are answered; what changed, came or was answered is left out.",
        ("tests/web/test_answers.py::test_several_requests_are_answered_as_they_were_shown",),
    ),
    R(
        "INB6",
        "A key answers only the focused request, never repeated or with a modifier, nor within 500 ms of a change.",
        (
            "tests/web/test_answers.py::test_inbox_keyboard_shortcuts",
            "tests/web/test_answers.py::test_keys_answer_nothing_shortly_after_the_list_has_changed",
        ),
    ),
)

REQUIREMENTS = (
    *(*CALLS, *SHELL, *ACT_OBSERVE, *ENTRIES, *COMMANDS, *HISTORY, *PYTHON_API),
    *(*ANSWERS, *POLICY, *TENANTS, *READERS, *BODIES, *EDGES, *FILES, *SECRETS, *OVERDUE, *PAGE, *HELD_TEXT),
    *(*OUTAGES, *HOSTS),
    *(*IMPORTS, *REPLAYS, *ROWS, *CLIENT_VIEWS, *OWN_CODE, *VIEWS, *ACP_ENTRIES, *PRODUCER_IDS, *TURNLESS_STREAMS),
    *(*DATABASES, *KILLS, *DATABASE_FAULTS, *POSTGRES_EDGES, *SERVERS, *MOVES, *OPERATIONS),
    *(*SESSION_LISTS, *TRANSCRIPTS, *AGENT_SESSIONS, *SEARCH, *AGENTS, *HOOKS, *HOOK_SETTINGS),
    *(*NOTIFICATIONS, *PHONES),
    *(*RULES, *INBOX),
)

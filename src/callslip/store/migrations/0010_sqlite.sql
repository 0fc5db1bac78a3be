-- The requests that were answered last, for the inbox.
CREATE INDEX approvals_answered ON approvals (created_at, session, entry) WHERE state <> 'pending';

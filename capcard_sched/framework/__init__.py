"""What plugins and actions are written against: hooks, session, statement, placement engine, conf and registry."""
